"""Texts that a model refuses, among others that it reads."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cde_rag.errors import CorpusError

Item = TypeVar("Item")
Made = TypeVar("Made")


def read_in_halves(
    items: Sequence[Item], embed: Callable[[Sequence[Item]], Made], *, is_up: Callable[[], bool]
) -> tuple[list[Item], list[Made], list[tuple[Item, Exception]]]:
    """Embed items, without those that the model refuses when they come alone.

    A call that fails is repeated in halves if the model embeds a text of ours, so that a text is to blame; any error
    counts, since a user's function or an API may raise whatever it likes.

    Args:
        items: Texts, or records.
        embed: Embeds some of them.
        is_up: Embeds a text of ours; returns False if that fails.

    Returns:
        The items that are embedded, the results of the calls that embedded them, and the others with their errors.

    Raises:
        Exception: That of the model, where it embeds nothing else either.
    """
    try:
        return list(items), [embed(items)], []
    except Exception as error:
        if not isinstance(error, CorpusError) and not is_up():
            raise
        if len(items) == 1:
            return [], [], [(items[0], error)]
    half = len(items) // 2
    (read, made, faults), others = (read_in_halves(part, embed, is_up=is_up) for part in (items[:half], items[half:]))
    return read + others[0], made + others[1], faults + others[2]
