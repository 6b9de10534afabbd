"""Passages as they are embedded: each with its siblings."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from cde_rag._validation import digest
from cde_rag.context.siblings import choose_siblings
from cde_rag.embedders.protocol import Embedder
from cde_rag.records import Parent, Record, Row, embedded_text, parent_of
from cde_rag.stores.store_calls import StoreCalls


@dataclass(frozen=True, slots=True)
class Passage:
    """A record as it is embedded.

    Attributes:
        digest: Over its title, text and siblings.
        siblings: Their texts.
    """

    digest: str
    siblings: list[str]


def passages(group: Sequence[Row], embedder: Embedder) -> list[Passage]:
    """Return the rows of one parent, in order, as passages with siblings and digests."""
    if len(group) == 1:
        return [Passage(_row_digest(group[0].record, []), [])]
    texts = [embedded_text(row.record) for row in group]
    digests = [digest(text) for text in texts]
    chosen = choose_siblings(digests, embedder.max_siblings, rule=embedder.context.manifest.sibling_rule)
    return [
        Passage(_row_digest(row.record, [digests[other] for other in others]), [texts[other] for other in others])
        for row, others in zip(group, chosen, strict=True)
    ]


def stored_groups(
    store: StoreCalls,
    parents: AbstractSet[Parent],
    parent_key: str | None,
    *,
    arriving: Mapping[str, Row] | None = None,
) -> defaultdict[Parent, dict[str, Row]]:
    """Return the stored passages of some parents, those of each in order of insertion, by id.

    By id, since another process may move a passage meanwhile, so that the store returns it twice. Those that arrive
    with another parent are passages of that one.
    """
    arriving = arriving or {}
    groups: defaultdict[Parent, dict[str, Row]] = defaultdict(dict)
    for row in store.scroll(where={str(parent_key): {"in": list(parents)}}) if parents else ():
        record = arriving.get(row.record.id, row).record
        if (parent := parent_of(record, parent_key)) is not None:
            groups[parent][row.record.id] = row
    return groups


def with_siblings(store: StoreCalls, some: Sequence[Row], parent_key: str | None, embedder: Embedder) -> list[Passage]:
    """Return rows as passages with the siblings that they have in the store now.

    Args:
        store: Holds a collection; or a state of it.
        some: Rows of it.
        parent_key: As in `Upserter`.
        embedder: Embedder of the vectors.
    """
    parents = {parent for row in some if (parent := parent_of(row.record, parent_key)) is not None}
    groups = stored_groups(store, parents, parent_key)
    found: dict[str, Passage] = {}
    for group in groups.values():
        found.update(zip(group, passages(list(group.values()), embedder), strict=True))
    return [found[row.record.id] if row.record.id in found else passages([row], embedder)[0] for row in some]


def _row_digest(record: Record, siblings: Sequence[bytes]) -> str:
    """Compute the sha256 over title, text and siblings' digests, in hex.

    Only the first sibling's position matters: the order of the others does not change the vector.
    """
    parts = [digest(record.title), digest(record.text), *siblings[:1], *sorted(siblings[1:])]
    return hashlib.sha256(b"".join(parts)).hexdigest()
