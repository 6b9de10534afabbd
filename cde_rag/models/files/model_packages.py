"""Models in packages of their own: an entry point of the group `cde_rag.models` names a model and the package it is in.

    [project.entry-points."cde_rag.models"]
    cde-mini-0 = "cde_rag_models_legacy"

The package holds a folder with the model's name, with `config.json`, `model.safetensors`, `tokenizer.json` and, for a
large vocabulary, `vocabulary.safetensors`. It is found without importing it.
"""

from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cde_rag.errors import ModelError

GROUP: Final = "cde_rag.models"  # of entry points
DISTRIBUTIONS: Final = {  # of models that the wheel of cde-rag does not have
    "cde-mini-0": "cde-rag-models-legacy",
    "cde-multilingual-1": "cde-rag-model-multilingual",
}


def installed(name: str) -> Path | None:
    """Return the folder of an installed model; None if no package registers the name.

    Raises:
        ModelError: The package that registers it cannot be found, or two packages register it.
    """
    points = {point.value: point for point in _registered() if point.name == name}
    if not points:
        return None
    if len(points) > 1:
        raise ModelError(f"Expected one package with the model {name}, found {', '.join(sorted(points))}; remove one.")
    (point,) = points.values()
    spec = find_spec(point.module)
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(f"{name} is registered by the package {point.module!r}, which is not there. Install it again.")
    return Path(spec.submodule_search_locations[0]) / name


def names() -> set[str]:
    """Return the names of all installed models."""
    return {point.name for point in _registered()}


def missing(name: str) -> ModelError | None:
    """Return the error of a known model whose package is not installed; None for other names."""
    if (distribution := DISTRIBUTIONS.get(name)) is None:
        return None
    return ModelError(
        f"{name} is in a package of its own, {distribution}, which is not installed. Run: pip install {distribution} "
        f"(in a clone: pip install ./models/{distribution})."
    )


def _registered() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))
