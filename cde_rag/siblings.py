"""Which passages of the same parent a passage is embedded with."""

from collections import defaultdict
from collections.abc import Sequence

SIBLINGS = 16  # texts of the same parent that a document is given (design §4)


def choose_siblings(position: int, count: int, limit: int = SIBLINGS) -> list[int]:
    """Choose the siblings of one passage among the `count` passages of its parent.

    The first half of the limit goes to the passages nearest in position (of two equally near the earlier one), the rest
    is spread evenly over what remains of the parent. A parent with no more than `limit` other passages gives them all.

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
        [9, 11, 27, 75]
    """
    if not 0 <= position < count:
        raise ValueError(f"a parent of {count} passages has no position {position}")
    by_distance = sorted(
        (other for other in range(count) if other != position), key=lambda other: abs(other - position)
    )
    if len(by_distance) <= limit:
        return sorted(by_distance)
    near, far = by_distance[: limit // 2], sorted(by_distance[limit // 2 :])
    wanted = limit - len(near)
    spread = [far[(2 * step + 1) * len(far) // (2 * wanted)] for step in range(wanted)]  # middles of equal stretches
    return sorted(near + spread)


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
    places: list[int] = []  # of each text in its parent
    for position, parent in enumerate(parents):
        if parent is None:
            places.append(0)
            continue
        places.append(len(members[parent]))
        members[parent].append(position)
    return [
        [] if parent is None else [members[parent][i] for i in choose_siblings(place, len(members[parent]), limit)]
        for parent, place in zip(parents, places, strict=True)
    ]
