"""Which passages of the same parent a passage is embedded with."""

from collections import defaultdict
from collections.abc import Sequence

SIBLINGS = 16  # texts of the same parent that a document is given (design §4)


def choose_siblings(position: int, count: int, limit: int = SIBLINGS) -> list[int]:
    """Choose the siblings of one passage among the `count` passages of its parent.

    The first half of the limit goes to the passages nearest in position (of two equally near the earlier one), one to
    the parent's first passage, which tells what the parent is about, and the rest is spread evenly over what remains. A
    parent with no more than `limit` other passages gives them all.

    Args:
        position: Place of the passage in its parent, from 0.
        count: Passages of the parent, the passage itself included.
        limit: At most so many siblings.

    Returns:
        Positions in ascending order, never `position` itself.

    Example:
        >>> choose_siblings(1, 4)
        [0, 2, 3]
        >>> choose_siblings(10, 100, limit=4)
        [0, 9, 11, 52]
    """
    if not 0 <= position < count:
        raise ValueError(f"a parent of {count} passages has no position {position}")
    others = count - 1
    if others <= limit:
        return [other for other in range(count) if other != position]
    near, wanted = limit // 2, limit - limit // 2
    first = min(max(position - (near + 1) // 2, 0), others - near)  # the window first … first + near holds the position
    window = [other for other in range(first, first + near + 1) if other != position]
    lead = int(first > 0 and wanted > 0)  # places taken by the parent's first passage, outside the window
    places, stretches = others - near - lead, wanted - lead
    outside = [lead + (2 * step + 1) * places // (2 * stretches) for step in range(stretches)]  # middles of stretches
    return sorted([0] * lead + window + [other if other < first else other + near + 1 for other in outside])


def sibling_positions(parents: Sequence[str | None], limit: int = SIBLINGS) -> list[list[int]]:
    """For each text of one call the positions of its siblings in that call.

    Args:
        parents: The parent of each text, in the order of the texts; `None` for a text without one.
        limit: At most so many siblings for a text.

    Example:
        >>> sibling_positions(["a", "b", "a", None])
        [[2], [], [0], []]
    """
    members: defaultdict[str, list[int]] = defaultdict(list)
    for position, parent in enumerate(parents):
        if parent is not None:
            members[parent].append(position)
    siblings: list[list[int]] = [[] for _ in parents]
    for positions in members.values():
        for place, position in enumerate(positions):
            siblings[position] = [positions[other] for other in choose_siblings(place, len(positions), limit)]
    return siblings
