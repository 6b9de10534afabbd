"""Texts longer than the model's window: the check of `windows` against a context, and the warning of truncation."""

from cde_rag import Context
from cde_rag.errors import ContextMismatchError, TruncationWarning, warn_user


def check_windows(context: Context, remedy: str, *, windows: bool) -> None:
    """Refuse `windows` for a context whose vectors are of texts that were cut.

    Args:
        context: A context that was made before.
        remedy: Advice, after "leave windows out, or".
        windows: The setting.

    Raises:
        ContextMismatchError: The setting is on, and the context has none.
    """
    if windows and not context.identity.windows:
        raise ContextMismatchError(
            expected=context.with_windows(windows=True).fingerprint,
            found=context.fingerprint,
            remedy=f"Its vectors are of texts that were cut: leave windows out, or {remedy}.",
        )


def warn_of_cut_texts(cut: int, total: int, context: Context) -> None:
    """Warn of texts longer than the model's window, with the setting of Haystack's splitter that makes them fit."""
    if cut:
        identity = context.identity
        warn_user(
            f"{cut} of {total} texts exceed the limit of {identity.limit} of {identity.name} and were "
            "truncated. Haystack's DocumentSplitter makes chunks of 200 words: take "
            f'DocumentSplitter(split_by="word", split_length={identity.max_length * 2 // 3}).',
            TruncationWarning,
        )
