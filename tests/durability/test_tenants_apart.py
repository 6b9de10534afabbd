"""Groups, reranking, hybrid search and filters of one tenant never show another's records, whatever else is done."""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from intact import damages
from lives import record, stub, tenants_at

from cde_rag.collection.collection import Collection
from cde_rag.collection.tenants import Tenants
from cde_rag.records import Hit, Record

TENANTS = ("acme", "Acme", "../acme", "a/b")


@pytest.mark.usefixtures("server")
def test_no_way_of_searching_shows_another_tenants_records(
    kind: str, scratch: Path, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """The records of every tenant have the same ids; their texts and metadata name the tenant."""
    dice, searches = random.Random(seed), 0
    with Tenants.create(tenants_at(kind, scratch / "papers"), stub(0)) as tenants:
        collections = {name: tenants.add(name) for name in TENANTS}
        for _ in range(times(3, 40)):
            for name, collection in collections.items():
                numbers = dice.sample(range(30), 8)
                collection.add_records([record(number, name, of=name) for number in numbers])
                collection.delete([f"d{number}" for number in dice.sample(range(30), 2)])
            for name, collection in collections.items():
                searches += _searched(name, collection, dice)
        for collection in collections.values():
            assert damages(collection) == []
            collection.close()
    tell(f"{searches} searches of {len(TENANTS)} tenants: by vectors, words and both, grouped, diverse and reranked")


def _searched(name: str, collection: Collection, dice: random.Random) -> int:
    """Search in every way, and compare the tenant of all that is returned or given to the reranker."""
    seen: set[str] = set()

    def rerank(pairs: Sequence[tuple[str, str]]) -> list[float]:
        seen.update(text.partition(" text of ")[0] for _, text in pairs)
        return [dice.random() for _ in pairs]

    query, k, where = f"{name} text of {dice.randrange(30)}", dice.choice([1, 5, 100]), {"odd": dice.random() < 0.5}
    views = [collection, collection.searcher("words"), collection.searcher("hybrid"), collection.reranked(rerank)]
    ways: list[Callable[[], Iterable[Hit | Record]]] = [
        lambda: collection.search_diverse(query, k=k),
        lambda: collection.scroll(where),
    ]
    for view in views:
        ways += [
            lambda view=view: view.search(query, k=k),
            lambda view=view: view.search(query, k=k, where=where),
            lambda view=view: [hit for group in view.search_groups(query, k, group_by="n") for hit in group.hits],
        ]
    for way in ways:
        seen.update(each.metadata["of"] for each in way())
    assert seen == {name}
    return len(ways)
