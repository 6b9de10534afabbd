"""Choice of siblings: the passages of the same parent that a passage is embedded with."""

from collections import defaultdict
from collections.abc import Sequence

from cde_rag._validation import digest
from cde_rag.errors import CorpusError, counted

SIBLINGS = 16  # texts of the same parent that a document is given (design §4)
SIBLING_RULE = 2  # of new Contexts; an older Context says none, which is rule 1
SIBLING_RULES = (1, SIBLING_RULE)


def choose_siblings(digests: Sequence[bytes], limit: int = SIBLINGS, *, rule: int = SIBLING_RULE) -> list[list[int]]:
    """Choose the siblings of every passage of one parent.

    Both rules give half of the limit to the passages nearest in position, one place to the parent's first passage,
    which mostly introduces its subject, and the rest to passages spread over the parent. A parent with no more than
    `limit` other passages gives them all. The rules differ in the spread: rule 1 spaces it evenly, so that each new
    passage moves it for every passage; rule 2 draws it by digest among the parent's beginning, which grows by halves.

    Args:
        digests: sha256 of each passage's text, in the parent's order.
        limit: Most siblings of a passage.
        rule: 1, or 2 for new vectors.

    Returns:
        For each passage the positions of its siblings in ascending order, never its own.

    Examples:
        >>> choose_siblings([bytes(32)] * 3)
        [[1, 2], [0, 2], [0, 1]]
    """
    if rule == 1:
        return [siblings_by_position(place, len(digests), limit) for place in range(len(digests))]
    return _siblings_by_digest(digests, limit)


def siblings_by_position(position: int, count: int, limit: int = SIBLINGS) -> list[int]:
    """Choose the siblings of one passage by rule 1: the nearest half, the first passage, the rest spaced evenly.

    Args:
        position: Place of the passage in its parent, from 0.
        count: Passages of the parent, the passage itself included.
        limit: Most siblings.

    Returns:
        Positions in ascending order, never `position` itself.

    Examples:
        >>> siblings_by_position(1, 4)
        [0, 2, 3]
        >>> siblings_by_position(10, 100, limit=4)
        [0, 9, 11, 52]
    """
    if not 0 <= position < count:
        raise ValueError(f"a parent of {counted(count, 'passage')} has no position {position}")
    others = count - 1
    if others <= limit:
        return [other for other in range(count) if other != position]
    near, wanted = limit // 2, limit - limit // 2
    first, end = _window(position, count, near)
    window = [other for other in range(first, end) if other != position]
    lead = int(first > 0 and wanted > 0)  # places taken by the parent's first passage, outside the window
    places, stretches = others - near - lead, wanted - lead
    outside = [lead + (2 * step + 1) * places // (2 * stretches) for step in range(stretches)]  # middles of stretches
    return sorted([0] * lead + window + [other if other < first else other + near + 1 for other in outside])


def _siblings_by_digest(digests: Sequence[bytes], limit: int = SIBLINGS) -> list[list[int]]:
    """Choose the siblings of every passage by rule 2, which few passages notice when one is appended or deleted.

    The spread of a passage are the passages with the smallest digests among the parent's first m. Its m grows by a half
    whenever that many passages are there, from a start that its own digest draws from ⅔ limit … limit: so each passage
    spreads over two thirds of the parent or more, and the spreads do not all move at once. An appended passage changes
    the siblings of 6.5 others on average: its four neighbours, and those whose m grew. A deleted one changes those of
    about 25 others; the parent's first passage is a sibling of all, so that its deletion changes them all.

    Args:
        digests: sha256 of each passage's text, in the parent's order.
        limit: Most siblings of a passage.

    Source: ours; docs/decisions/siblings.md.
    """
    count = len(digests)
    if count - 1 <= limit:
        return [[other for other in range(count) if other != position] for position in range(count)]
    if not limit:
        return [[] for _ in digests]
    by_digest = sorted(range(1, count), key=lambda position: (digests[position], position))
    siblings: list[list[int]] = []
    for position in range(count):
        first, end = _window(position, count, limit // 2)
        chosen = {0, position, *range(first, end)}
        reach = _reach(digests[position], count, limit)
        drawn = (other for other in by_digest if other < reach and other not in chosen)
        while len(chosen) <= limit:
            chosen.add(next(drawn))
        siblings.append(sorted(chosen - {position}))
    return siblings


def sibling_positions(
    parents: Sequence[str | None],
    texts: Sequence[str],
    limit: int = SIBLINGS,
    *,
    rule: int = SIBLING_RULE,
) -> list[list[int]]:
    """Return the positions of each text's siblings among the texts of one call.

    Args:
        parents: The parent of each text, in the order of the texts; `None` for a text without one.
        texts: As they are embedded.
        limit: Most siblings of a text.
        rule: As in `choose_siblings`.

    Raises:
        CorpusError: Not as many parents as texts.

    Examples:
        >>> sibling_positions(["a", "b", "a", None], ["one", "two", "three", "four"])
        [[2], [], [0], []]
    """
    if len(parents) != len(texts):
        raise CorpusError(f"parents has to name one parent (or None) per text: {len(texts)}, found {len(parents)}.")
    members: defaultdict[str, list[int]] = defaultdict(list)
    for position, parent in enumerate(parents):
        if parent is not None:
            members[parent].append(position)
    siblings: list[list[int]] = [[] for _ in parents]
    for positions in members.values():
        digests = [digest(texts[position]) for position in positions]
        for position, chosen in zip(positions, choose_siblings(digests, limit, rule=rule), strict=True):
            siblings[position] = [positions[other] for other in chosen]
    return siblings


def sibling_texts(
    parents: Sequence[str | None], texts: Sequence[str], limit: int = SIBLINGS, *, rule: int = SIBLING_RULE
) -> list[list[str]]:
    """Return the siblings of each text; as `sibling_positions`, but the texts themselves."""
    return [[texts[place] for place in row] for row in sibling_positions(parents, texts, limit, rule=rule)]


def _window(position: int, count: int, near: int) -> tuple[int, int]:
    """Return the window of a position and the `near` others nearest to it; of two equally near the earlier one."""
    first = min(max(position - (near + 1) // 2, 0), count - 1 - near)
    return first, first + near + 1


def _reach(key: bytes, count: int, limit: int) -> int:
    """Return the number of first passages, out of `count` > `limit`, that the spread is drawn from: over two thirds."""
    share = int.from_bytes(key[-4:], "big")  # of 2³²; whole numbers, as fractions may differ between machines
    reach = (limit * (2 << 32) + limit * share) // 3
    while reach + reach // 2 <= count << 32:
        reach += reach // 2
    return max(reach >> 32, limit + 1)
