"""User's cache of contexts: one file per fingerprint, shared by all of the user's processes.

    $XDG_CACHE_HOME/cde-rag/contexts/<fingerprint>.context.safetensors      by default in ~/.cache

The adapters write here the contexts that frameworks do not store with their vectors. Nothing is deleted by itself: a
context without which an index cannot be searched may have its only copy here.
"""

import os
from pathlib import Path

from cde_rag.context.context import Context
from cde_rag.errors import CDEWarning, ContextError, ContextFormatError, ContextMissingError, warn_user


def cache_folder() -> Path:
    """Return the folder of cde-rag in the user's cache folder.

    Raises:
        ContextError: The user has no home folder, and `XDG_CACHE_HOME` is not set.
    """
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():  # relative paths are ignored. Source: XDG base directory specification
        return chosen / "cde-rag"
    try:
        return Path.home() / ".cache" / "cde-rag"
    except RuntimeError as error:
        raise ContextError(f"There is no cache folder ({error}) Set XDG_CACHE_HOME to a writable folder.") from error


def cached_path(fingerprint: str) -> Path:
    """Return the path of a context in the cache."""
    return cache_folder() / "contexts" / f"{fingerprint}.context.safetensors"


def cache_context(context: Context) -> None:
    """Write a context to the cache, atomically; a copy that is there intact stays as it is.

    Raises:
        ContextError: The cache is not writable, or full.
    """
    path = cached_path(context.fingerprint)
    try:
        if cached_context(context.fingerprint) is not None:
            return
    except ContextFormatError:
        pass  # damaged: replaced by the intact context
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ContextError(
            f"{path.parent}: not created ({error.strerror}). Set XDG_CACHE_HOME to a writable folder."
        ) from error
    context.save(path)


def cache_or_warn(context: Context, *, otherwise: str) -> None:
    """Write a context to the cache, as `cache_context` does.

    Args:
        context: The context.
        otherwise: The sentence of the warning that says how to keep the context without the cache.

    Warns:
        CDEWarning: The cache is not writable, or full.
    """
    try:
        cache_context(context)
    except ContextError as error:
        warn_user(f"The context is not in the cache. {error} {otherwise}", CDEWarning)


def cached_context(fingerprint: str) -> Context | None:
    """Read a context from the cache; None if it is not there.

    Raises:
        ContextError: The file is not readable.
        ContextFormatError: The file is damaged, of a newer format, or of another fingerprint.
    """
    path = cached_path(fingerprint)
    try:
        context = Context.load(path)
    except ContextMissingError:
        return None
    if context.fingerprint != fingerprint:
        raise ContextFormatError(
            f"{path}: expected the context {fingerprint[:16]}…, found {context.fingerprint[:16]}…. The file was "
            "renamed: delete it, and load the context from a copy."
        )
    return context
