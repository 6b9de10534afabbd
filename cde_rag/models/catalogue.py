"""Models to choose from: those that are installed, and a few on the hub that are worth their cost."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cde_rag.models.files import model_files
from cde_rag.models.files.model_files import DISTRIBUTIONS, MULTILINGUAL
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.plain.checkpoint import MINILM, carried

_LICENCE: Final = "Apache-2.0"  # of the weights that we trained
_COSTS: Final = {"cde-base": 3.0, "cde-multilingual": 3.0}  # by the beginning of a name; others are of MiniLM's size


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model by the name that `model=` and `--model` take; it runs without torch.

    Attributes:
        name: Bundled name, or hub id.
        where: "bundled", "installed", "package NAME" (not installed yet) or "hub".
        context: "trained" if it reads a context; "by arithmetic" if a corpus changes its vectors afterwards.
        languages: Languages that it reads.
        dim: Length of a vector.
        tokens: Tokens that it reads of a text; 0 if that is unknown here.
        megabytes: Size of its files, with those of a first half, in float16 where it is downloaded as such; 0 if that
            is unknown here.
        cost: Time of a text, as a multiple of all-MiniLM-L6-v2's: of its encoder's parameters, so an estimate.
        licence: SPDX name.
    """

    name: str
    where: str
    context: str
    languages: str
    dim: int
    tokens: int
    megabytes: int
    cost: float
    licence: str


_HUB: Final = (  # sizes and licences as their model cards have them; costs: parameters of the body, MiniLM-L6 is 1
    (MINILM, "English", 384, 256, 91, 1.0, "Apache-2.0"),
    ("Snowflake/snowflake-arctic-embed-xs", "English", 384, 512, 90, 1.0, "Apache-2.0"),
    ("MongoDB/mdbr-leaf-ir", "English", 768, 512, 92, 1.0, "Apache-2.0"),
    ("Snowflake/snowflake-arctic-embed-s", "English", 384, 512, 133, 2.0, "Apache-2.0"),
    ("BAAI/bge-small-en-v1.5", "English", 384, 512, 133, 2.0, "MIT"),
    ("ibm-granite/granite-embedding-small-english-r2", "English", 384, 8192, 95, 2.6, "Apache-2.0"),
    ("intfloat/multilingual-e5-small", "100 languages", 384, 512, 471, 2.0, "MIT"),
    ("Snowflake/snowflake-arctic-embed-m-v1.5", "English", 768, 512, 436, 8.0, "Apache-2.0"),
)


def known_models() -> Iterator[KnownModel]:
    """Yield the models of this and other packages, and those of the hub that the documentation recommends.

    Reads the configs of models that are installed; asks nobody.
    """
    names = model_files.packaged_names()
    for name in sorted(names, key=lambda each: (not _is_bundled(each), each)):
        source = ModelSource.of(model_files.find(name), ModelName(base=name))
        yield KnownModel(
            name=name,
            where="bundled" if _is_bundled(name) else "installed",
            context="trained",
            languages=_languages(name),
            dim=source.files.config.dim,
            tokens=source.files.config.max_length,
            megabytes=round(sum(Path(path).stat().st_size for path, _ in source.written()) / 1e6),
            cost=next((cost for begin, cost in _COSTS.items() if name.startswith(begin)), 1.0),
            licence=_LICENCE,
        )
    for name, distribution in sorted(DISTRIBUTIONS.items()):
        if name not in names:
            yield KnownModel(name, f"package {distribution}", "trained", _languages(name), 0, 0, 0, 0.0, _LICENCE)
    for name, languages, dim, tokens, megabytes, cost, licence in _HUB:
        where = "hub" if carried(name) is None else "installed"
        yield KnownModel(name, where, "by arithmetic", languages, dim, tokens, megabytes, cost, licence)


def _languages(name: str) -> str:
    return "100 languages" if name in MULTILINGUAL else "English"


def _is_bundled(name: str) -> bool:
    return (model_files.BUNDLED / name).is_dir()
