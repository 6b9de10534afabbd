"""Settings in the files of a sentence-transformers model: known, or refused by name."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast

from safetensors import SafetensorError, safe_open  # pyright: ignore[reportUnknownVariableType]

from cde_rag.models.plain.checkpoint import ModelFiles

_FLOATS: Final = ("F32", "F16", "BF16")
_LARGEST: Final = 2**31 - 1  # of a size
_MOST_LAYERS: Final = 1_000  # the largest published encoders have less than a tenth


class OtherArchitectureError(Exception):
    """A model that the graph writer cannot express; the message names the setting or part found."""


def check_settings(path: str, found: Mapping[str, Any], *, known: Mapping[str, Any]) -> None:
    """Check that all settings of a file are known, or off.

    Args:
        path: Path of the file, for the message.
        found: Its settings.
        known: The only value of each known setting; None for any.

    Raises:
        OtherArchitectureError: There is another setting, or another value.
    """
    for name, value in found.items():
        if name in known and (known[name] is None or value in (None, known[name])):
            continue
        if name in known or value not in (None, False, "", [], {}):
            raise OtherArchitectureError(f"{name} {value!r:.80} in {path}")


def read_sizes(found: Mapping[str, Any], names: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Read the sizes of an encoder by our names.

    Args:
        found: Settings of a file.
        names: Names of sizes: theirs, ours and the usual value.

    Raises:
        OtherArchitectureError: One is no size, or more than any encoder has; its layers would take all memory.
    """
    sizes: dict[str, int] = {}
    for theirs, (ours, usual) in names.items():
        value: Any = found.get(theirs, usual)
        if (
            isinstance(value, bool)
            or not 0 < value <= (_MOST_LAYERS if ours == "layers" else _LARGEST)
            or value != int(value)
        ):
            raise OtherArchitectureError(f"{theirs} {value!s:.80} in config.json")
        sizes[ours] = int(value)
    return sizes


@contextmanager
def other_forms() -> Generator[None, None, None]:
    """Name files whose content has another form than expected as those of another architecture.

    Raises:
        OtherArchitectureError: Reading them failed.
    """
    try:
        yield
    except (AttributeError, LookupError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise OtherArchitectureError(f"files of another form ({error!r:.80})") from error


def json_object(files: ModelFiles, path: str) -> dict[str, Any]:
    """Read a JSON object among the files; empty if there is none.

    Raises:
        ModelError: It was written meanwhile.
        OtherArchitectureError: It is no JSON object.
    """
    value: Any = json.loads(files.content(path)) if path in files.digests else {}
    if not isinstance(value, dict):
        raise OtherArchitectureError(f"no JSON object in {path}")
    return cast("dict[str, Any]", value)


def stored_shapes(files: ModelFiles, path: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the floats in a file of weights by their names, from its header.

    Raises:
        OtherArchitectureError: It is no safetensors file.
    """
    found: dict[str, tuple[int, ...]] = {}
    try:
        with cast(Any, safe_open)(files.folder / path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 (no mapping)
                if (part := file.get_slice(name)).get_dtype() in _FLOATS:
                    found[name] = tuple(part.get_shape())
    except (OSError, SafetensorError) as error:
        raise OtherArchitectureError(f"{path}, which is no safetensors ({error})") from error
    return found
