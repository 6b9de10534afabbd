"""Texts that a model refuses, among others that it reads."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cde_rag.errors import CorpusError

Item = TypeVar("Item")
Made = TypeVar("Made")


def read_in_halves(
    items: Sequence[Item], embed: Callable[[Sequence[Item]], Made], *, probe: Callable[[], object]
) -> tuple[list[Item], list[Made], list[tuple[Item, Exception]]]:
    """Embed items, without those that the model refuses when they come alone.

    A call that fails is repeated in halves if the model embeds a text of ours, so that a text is to blame; any error
    counts, since a user's function or an API may raise whatever it likes.

    Args:
        items: Texts, or records.
        embed: Embeds some of them.
        probe: Embeds a text of ours; raises if the model is down.

    Returns:
        The items that are embedded, the results of the calls that embedded them, and the others with their errors.

    Raises:
        Exception: That of the model, where it embeds nothing else either.
    """
    try:
        return list(items), [embed(items)], []
    except Exception as error:
        if not isinstance(error, CorpusError) and not _succeeds(probe):
            raise
        if len(items) == 1:
            return [], [], [(items[0], error)]
    half = len(items) // 2
    (read, made, faults), others = (read_in_halves(part, embed, probe=probe) for part in (items[:half], items[half:]))
    return read + others[0], made + others[1], faults + others[2]


def _succeeds(probe: Callable[[], object]) -> bool:
    try:
        probe()
    except Exception:  # noqa: BLE001 (the error of the caller's texts is raised in its place)
        return False
    return True
