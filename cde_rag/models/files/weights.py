"""Weight files of two-way models: search, size limits and digests. Safetensors only."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from cde_rag._files import read_file
from cde_rag.errors import ModelError

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
MODULES = "modules.json"  # of sentence-transformers, whose models may have no config of their own
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_BYTES = {WEIGHTS: 4 * 1024**3, INDEX: 2**24, TOKENIZER: 2**26, CONFIG: 2**20}  # shards: as WEIGHTS, together
MAX_SHARDS = 64
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHARD = re.compile(r"[\w.-]+\.safetensors")


def check_size(where: str, name: str, size: int | None) -> None:
    """Refuse a file that is larger than the limit for its name; an unknown size passes, for a check after download.

    Raises:
        ModelError: The file is too large.
    """
    limit = MAX_BYTES.get(name, MAX_BYTES[WEIGHTS])
    if size is not None and size > limit:
        raise ModelError(f"{where}: expected at most {limit} bytes, found {size}. Is it a model of this library?")


def no_weights(where: str, names: Iterable[str]) -> ModelError:
    """Return the error for a place without safetensors, with the names of the files that are there."""
    found = sorted(name for name in names if "/" not in name)
    if CONFIG not in found:
        return ModelError(f"{where}: expected {CONFIG}, found {', '.join(found) or 'no files'}. Is it a model?")
    if pickles := [name for name in found if name.endswith(PICKLES)]:
        return ModelError(
            f"{where}: expected {WEIGHTS}, found only {', '.join(pickles)}. Pickle files can run code when they are "
            "read, so they are refused; request safetensors from the authors, or name another revision."
        )
    return ModelError(f"{where}: expected {WEIGHTS} or {INDEX}, found {', '.join(found)}. The model is incomplete.")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of bounded size.

    Raises:
        ModelError: The file is missing, too large or holds no JSON object.
    """
    try:
        check_size(str(path), path.name, path.stat().st_size)
        value = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"Expected a JSON object at {path}, found: {error!r}.") from error
    if not isinstance(value, dict):
        raise ModelError(f"Expected a JSON object at {path}, found {type(value).__name__}.")
    return cast(dict[str, Any], value)


def read_index(path: Path) -> dict[str, str]:
    """Read the index of a sharded model: the name of the file of each tensor.

    Raises:
        ModelError: The file is no such index, names too many files, or files outside the folder.
    """
    try:
        shards = dict[str, str](read_json(path)["weight_map"])
        names = set(shards.values())
        fit = all(_SHARD.fullmatch(name) for name in names)
    except (KeyError, TypeError, ValueError):
        shards, names, fit = dict[str, str](), set[str](), False
    if not fit or not 0 < len(names) <= MAX_SHARDS:
        raise ModelError(
            f"{path}: expected a weight_map of tensors to at most {MAX_SHARDS} safetensors files next to it, found "
            f"{', '.join(sorted(names)[:3]) or 'none'}. The model is damaged."
        )
    return shards


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model, in the order of their names.

    Raises:
        ModelError: There are none, or files that the index names are missing or too large.
    """
    names = [WEIGHTS]
    if not (folder / WEIGHTS).is_file():
        if not (folder / INDEX).is_file():
            raise no_weights(str(folder), (path.name for path in folder.iterdir()))
        names = sorted(set(read_index(folder / INDEX).values()))
    files = [folder / name for name in names]
    if missing := [path.name for path in files if not path.is_file()]:
        raise ModelError(f"{folder}: {INDEX} names files that are missing: {', '.join(missing)}. Download them again.")
    check_size(str(folder), WEIGHTS, sum(path.stat().st_size for path in files))
    return files
