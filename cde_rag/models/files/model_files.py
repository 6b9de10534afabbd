"""Files of one-way models and pairs: folders found by name, configs, and contents checked against their digests.

Nothing here imports torch, so that runtimes without it read the same files.

A model may be in a package of its own: an entry point of the group `cde_rag.models` names it and the package.

    [project.entry-points."cde_rag.models"]
    cde-mini-0 = "cde_rag_models_legacy"

The package holds a folder with the model's name, with `config.json`, `model.safetensors`, `tokenizer.json` and, for a
large vocabulary, `vocabulary.safetensors`. It is found without importing it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from cde_rag._files import file_sha256, read_file, user_path, write_durably
from cde_rag.errors import ModelError

BUNDLED = Path(__file__).parents[1] / "bundled"
ALIASES = {"cde-mini": "cde-mini-2", "cde-multilingual": "cde-multilingual-1"}  # what new collections get
MULTILINGUAL = frozenset({"cde-multilingual-1"})  # packaged models that read other languages than English
GROUP = "cde_rag.models"  # of entry points
DISTRIBUTIONS = {  # of models that the wheel of cde-rag does not have
    "cde-mini-0": "cde-rag-models-legacy",
    "cde-multilingual-1": "cde-rag-model-multilingual",
}
CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
VOCABULARY = "vocabulary.safetensors"  # word embeddings, if they are in a file of their own
_DIGESTS = {WEIGHTS: "weights_sha256", VOCABULARY: "vocabulary_sha256", TOKENIZER: "tokenizer_sha256"}
MAX_WEIGHTS_BYTES = 2 * 1024**3
_Found = TypeVar("_Found")


@runtime_checkable
class _WrittenAsJson(Protocol):
    """Protocol of a model's config, as a digest needs it."""

    def to_json(self) -> dict[str, Any]:
        """Return all fields that determine the vector space, and the model's name."""
        ...


class ModelHeader(NamedTuple):
    """Content of a model's config.json.

    Attributes:
        config: Fields of the config.
        weights_sha256: Digest of the file of weights, hex.
        tokenizer_sha256: Digest of the tokenizer's file, hex.
        vocabulary_sha256: Digest of the file of word embeddings, hex; None if the weights contain them.
    """

    config: dict[str, Any]
    weights_sha256: str
    tokenizer_sha256: str
    vocabulary_sha256: str | None

    def weights(self, folder: Path) -> list[tuple[Path, str]]:
        """Return the files of weights with their digests."""
        vocabulary = [] if self.vocabulary_sha256 is None else [(folder / VOCABULARY, self.vocabulary_sha256)]
        return [(folder / WEIGHTS, self.weights_sha256), *vocabulary]

    @property
    def all_weights_sha256(self) -> str:
        """Digest of all files of weights, hex."""
        if self.vocabulary_sha256 is None:
            return self.weights_sha256
        return hashlib.sha256(f"{self.weights_sha256} {self.vocabulary_sha256}".encode()).hexdigest()


def find(name: str | Path) -> Path:
    """Return the folder of a model by its name in this or another package, an alias, or its own path.

    Raises:
        ModelError: There is no such model, or its package is not installed.
    """
    folder = local(name)
    if folder is not None:
        return folder
    raise _not_installed(ALIASES.get(str(name), str(name))) or ModelError(
        f"Expected a bundled model ({', '.join(sorted({*ALIASES, *packaged_names()}))}), a folder with {CONFIG}, or a "
        f"hub id such as jxm/cde-small-v2, found {str(name)!r}."
    )


def local(name: str | Path) -> Path | None:
    """Return the folder of a model by its name, an alias, or its own path; None if there is no such model."""
    folder = user_path(name)
    return packaged(ALIASES.get(str(name), str(name))) or (folder if (folder / CONFIG).is_file() else None)


def packaged(name: str) -> Path | None:
    """Return the folder of a model that is bundled or in an installed package of its own; None for other names."""
    if Path(name).name != name:
        return None
    folder = BUNDLED / name if (BUNDLED / name / CONFIG).is_file() else installed(name)
    return folder if folder is not None and (folder / CONFIG).is_file() else None


def reads_english_only(name: str) -> bool:
    """Return True for a packaged model that reads no other language than English."""
    return packaged(name) is not None and name not in MULTILINGUAL


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


def packaged_names() -> set[str]:
    """Return the names of all bundled models and of those in installed packages of their own."""
    return {folder.parent.name for folder in BUNDLED.glob(f"*/{CONFIG}")} | {point.name for point in _registered()}


def _not_installed(name: str) -> ModelError | None:
    """Return the error of a known model whose package is not installed; None for other names."""
    if (distribution := DISTRIBUTIONS.get(name)) is None:
        return None
    return ModelError(
        f"{name} is in a package of its own, {distribution}, which is not installed. Run: pip install {distribution} "
        f"(in a clone: pip install ./models/{distribution})."
    )


def _registered() -> list[EntryPoint]:
    return list(entry_points(group=GROUP))


def first_half(name: str, first: str) -> Path:
    """Return the folder of a pair's first half, which is bundled or in an installed package.

    Args:
        name: Name of the pair, for messages.
        first: Name of the first half.

    Raises:
        ModelError: There is no such model, or its package is not installed.
    """
    folder = packaged(first)
    if folder is None:
        raise _not_installed(first) or ModelError(
            f"{name}: expected its first half, {first!r}, among the installed models "
            f"({', '.join(sorted(packaged_names()))}), found no such model. Install the version of cde-rag that the "
            "model was made with."
        )
    return folder


def check_first_half(name: str, first: str, *, expected: str, found: str) -> None:
    """Check the digest of a pair's first half.

    Raises:
        ModelError: It differs from that with which the pair was made.
    """
    if found != expected:
        raise ModelError(
            f"{name}: expected {first} with the digest {expected[:16]}… as its first half, found {found[:16]}…. "
            "Install the version of cde-rag that the model was made with."
        )


def read_header(folder: Path, kind: str = "a model config") -> ModelHeader:
    """Read a config.json; its fields are not checked.

    Args:
        folder: Folder of the model.
        kind: Expected kind of config, for the message.

    Raises:
        ModelError: The file is missing, no JSON object, or lacks digests.
    """
    try:
        value: Any = json.loads(read_file(folder / CONFIG))
        digests = value.pop("weights_sha256"), value.pop("tokenizer_sha256"), value.pop("vocabulary_sha256", None)
        return ModelHeader(value, *digests)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        if (folder / "modules.json").exists():
            raise ModelError(
                f"{folder}: expected {kind}, found a SentenceTransformer, which reads no context. In Python it is an "
                "embedder: ContextualEmbedder.from_corpus(texts, model=PlainEmbedder(folder))."
            ) from error
        raise ModelError(
            f"Expected {kind} with the digests of its files at {folder / CONFIG}, found: {error!r}. Make or download "
            "the model again."
        ) from error


def write_files(folder: Path, config: _WrittenAsJson, weights: Mapping[str, bytes], tokenizer_json: str) -> None:
    """Write the files of a model, weights under their names; its config.json has the digests of all others.

    Each takes the place of an older one, into which a process that has it mapped would otherwise look.
    """
    folder.mkdir(parents=True, exist_ok=True)
    contents = {**weights, TOKENIZER: tokenizer_json.encode()}
    for name, content in contents.items():
        write_durably(folder / name, content)
    digests = {_DIGESTS[name]: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    write_durably(folder / CONFIG, f"{json.dumps(config.to_json() | digests, indent=2)}\n".encode())


def checked(path: Path, expected: str) -> bytes:
    """Read a file of a model and check its digest.

    Raises:
        ModelError: The file is missing, too large, or its sha256 is not `expected`.
    """
    content = _read(path, read_file)
    _compare(path, hashlib.sha256(content).hexdigest(), expected)
    return content


def check(path: Path, expected: str) -> None:
    """Check the digest of a file of a model, without its content in memory; raises like `checked`."""
    _compare(path, _read(path, file_sha256), expected)


def _read(path: Path, read: Callable[[Path], _Found]) -> _Found:
    try:
        if path.stat().st_size > MAX_WEIGHTS_BYTES:
            raise ModelError(f"{path} is larger than {MAX_WEIGHTS_BYTES} bytes; is it a model of this library?")
        return read(path)
    except OSError as error:
        raise ModelError(f"Expected {path}, found: {error}. Give the folder of a complete model.") from error


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise ModelError(
            f"{path}: {CONFIG} expects sha256 {expected[:16]}…, found {found[:16]}…. The file is damaged or of another "
            "model; install or download it again."
        )


def digest(config: _WrittenAsJson, weights_sha256: str) -> str:
    """Compute the digest that a Context is bound to: sha256 hex of the config (without its name) and the weights."""
    sizes = {key: value for key, value in config.to_json().items() if key != "name"}
    return hashlib.sha256(json.dumps([sizes, weights_sha256], sort_keys=True).encode()).hexdigest()
