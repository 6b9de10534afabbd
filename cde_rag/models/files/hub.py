"""Download of models from the hub: config, weights and tokenizer, never code. Its client caches and pins them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cde_rag._files import file_sha256
from cde_rag.errors import ModelError, require
from cde_rag.models.files.weights import CONFIG, INDEX, MODULES, TOKENIZER, WEIGHTS, check_size, no_weights, read_index

EXTRA = "hub"
_COMMIT = re.compile(r"[0-9a-f]{40}")
TIMEOUT_S = 10.0  # to hear from the hub at all


def fetch(repository: str, *, revision: str | None, token: str | None) -> Path:
    """Download the files of a model, or take them from the cache if it is pinned or there is no network.

    Args:
        repository: Id of the repository, such as "jxm/cde-small-v2".
        revision: Branch, tag or commit; the newest by default.
        token: Token for private and gated repositories; by default that of `hf auth login` or HF_TOKEN.

    Returns:
        The cache's folder of one commit, named by that commit.

    Raises:
        MissingExtraError: `huggingface_hub` is not installed.
        ModelError: No such model, no permission, no safetensors, files that are too large or differ from the hub's
            digests; or no network and not in the cache.
    """
    if revision is not None and _COMMIT.fullmatch(revision):
        folder = _cached_folder(repository, revision)
        if folder is not None and _complete(folder):
            return folder
    errors = require("huggingface_hub.errors", EXTRA)
    try:
        paths = _download_all(repository, revision, token)
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        folder = None if _is_rejected(error) else _cached_folder(repository, revision)
        if folder is not None and _complete(folder):
            return folder
        raise _not_fetched(repository, revision, error) from error
    if len({path.parent for path in paths}) != 1:
        raise ModelError(
            f"{repository} changed while it was downloaded. Run again, or pin it with revision='<commit>'."
        )
    return paths[0].parent


def fetch_config(repository: str, *, revision: str | None) -> Path | None:
    """Download a model's config, or take it from the cache. Errors are those of `fetch`.

    Returns:
        The cache's folder of one commit, named by that commit; None for a repository without a config.
    """
    errors = require("huggingface_hub.errors", EXTRA)
    try:
        return _download_alone(repository, CONFIG, revision).parent
    except errors.RemoteEntryNotFoundError:
        return None
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:
        if not _is_rejected(error) and _cached(repository, revision, MODULES) is not None:
            return None
        raise _not_fetched(repository, revision, error) from error


def fetch_tokenizer(repository: str, *, wanted_by: str) -> Path:
    """Download the tokenizer of a backbone, for models without one, or take it from the cache.

    Raises:
        ModelError: It can neither be downloaded nor found in the cache.
    """
    errors = require("huggingface_hub.errors", EXTRA)
    try:
        return _download_alone(repository, TOKENIZER, None)
    except (errors.HTTPError, OSError) as error:
        raise ModelError(
            f"{wanted_by} has no {TOKENIZER}, and that of its backbone {repository} could not be fetched "
            f"({_reason(error)}). Run once with network, or put that file into the model's folder."
        ) from error


def _download_all(repository: str, revision: str | None, token: str | None) -> list[Path]:
    """Download all files of a model; new ones are checked against the hub's digests."""
    api = require("huggingface_hub", EXTRA).HfApi()
    info = api.model_info(repository, revision=revision, files_metadata=True, token=token, timeout=TIMEOUT_S)
    sizes = {file.rfilename: file.size for file in info.siblings or ()}
    digests = {file.rfilename: file.lfs.sha256 for file in info.siblings or () if file.lfs is not None}

    def download(name: str) -> Path:
        was_there = _cached(repository, info.sha, name) is not None
        path = _download(repository, name, revision, token)
        if not was_there and name in digests:
            _check_digest(repository, path, digests[name])
        return path

    paths = [download(name) for name in _wanted(repository, sizes)]
    if INDEX in sizes and WEIGHTS not in sizes:
        index = next(path for path in paths if path.name == INDEX)
        for shard in sorted(set(read_index(index).values())):
            check_size(f"{repository}: {shard}", shard, sizes.get(shard))
            paths.append(download(shard))
    return paths


def _wanted(repository: str, sizes: Mapping[str, int | None]) -> list[str]:
    """Return the names of the files to download first, after a check of their sizes."""
    weights = WEIGHTS if WEIGHTS in sizes else INDEX
    if weights not in sizes or CONFIG not in sizes:
        raise no_weights(repository, sizes)
    names = [CONFIG, weights, *([TOKENIZER] if TOKENIZER in sizes else [])]
    for name in names:
        check_size(f"{repository}: {name}", name, sizes[name])
    return names


def _download(repository: str, name: str, revision: str | None, token: str | None) -> Path:
    download: Any = require("huggingface_hub", EXTRA).hf_hub_download
    return Path(download(repository, name, revision=revision, token=token, etag_timeout=TIMEOUT_S))


def _download_alone(repository: str, name: str, revision: str | None) -> Path:
    """Download one file, or take it from the cache."""
    if _cached(repository, revision, name) is None:  # the client would try for half a minute to reach the hub for it
        require("huggingface_hub", EXTRA).HfApi().model_info(repository, revision=revision, timeout=TIMEOUT_S)
    return _download(repository, name, revision, None)


def _check_digest(repository: str, path: Path, expected: str) -> None:
    """Compare a large file with the sha256 from the hub, and delete it if they differ.

    The client compares sizes only, and names a downloaded file by the digest from the hub.
    """
    if (found := file_sha256(path)) != expected:
        path.resolve().unlink()
        path.unlink(missing_ok=True)  # a link to it, mostly
        raise ModelError(
            f"{repository}: the hub names sha256 {expected[:16]}… for {path.name}, found {found[:16]}…. It was damaged "
            "on the way and is forgotten; run again."
        )


def _cached(repository: str, revision: str | None, name: str) -> Path | None:
    """Return the path of a file in the cache; None if it is not there."""
    errors = require("huggingface_hub.errors", EXTRA)
    try:
        found = require("huggingface_hub", EXTRA).try_to_load_from_cache(repository, name, revision=revision or "main")
    except errors.HFValidationError:  # no name of a repository
        return None
    return Path(found) if isinstance(found, str) else None


def _cached_folder(repository: str, revision: str | None) -> Path | None:
    """Return the cache's folder of a revision; None if it holds no config."""
    config = _cached(repository, revision, CONFIG)
    return None if config is None else config.parent


def _complete(folder: Path) -> bool:
    """Return True if a folder holds all files of weights."""
    if (folder / WEIGHTS).is_file():
        return True
    if not (folder / INDEX).is_file():
        return False
    return all((folder / shard).is_file() for shard in read_index(folder / INDEX).values())


def _not_fetched(repository: str, revision: str | None, error: Exception) -> ModelError:
    if _is_rejected(error):
        return ModelError(
            f"Expected the model {repository!r} at revision {revision or 'main'!r} on the hub, found: "
            f"{_reason(error)}. Check the name; for private or gated models accept their terms, and give token=… "
            "or run `hf auth login`."
        )
    return ModelError(
        f"{repository} is not in the cache, and the hub could not be reached ({_reason(error)}). Run once with "
        "network; or `cde-rag convert` it to a folder on a machine that has network, and give the folder."
    )


def _is_rejected(error: Exception) -> bool:
    """Return True if the hub answered that the model does not exist, or that this user may not read it."""
    errors = require("huggingface_hub.errors", EXTRA)
    if isinstance(error, errors.RepositoryNotFoundError | errors.RevisionNotFoundError | errors.HFValidationError):
        return True
    response: Any = getattr(error, "response", None)
    return isinstance(error, errors.HfHubHTTPError) and response is not None and response.status_code in (401, 403, 404)


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
