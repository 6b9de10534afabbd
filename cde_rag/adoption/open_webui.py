"""Data folder of Open WebUI: all its collections of Chroma, which have one model, read and moved together.

    webui.db           its settings, and with them the embedding model
    vector_db/         Chroma: a collection for each knowledge base, `file-*`, `user-memory-*`, `web-search-*` and
                       `knowledge-bases`, which has their names and descriptions

Open WebUI looks collections up by name in each call, so that it reads the new ones at once. One that it makes or makes
again before the switch joins the move; one that it makes later with its old model keeps these vectors, and the next
move, after a release, brings it. Source: `retrieval/vector/dbs/chroma.py`, `routers/retrieval.py`, `knowledge.py` and
`memories.py` of Open WebUI 0.12.4, and `lab/benchmarks/open_webui.py`, which moves its own folder.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import numpy as np
from jaxtyping import Float32

from cde_rag.adoption.application_lines import common_name
from cde_rag.adoption.chroma_collection import NEW, OLD, ChromaCollection, stamps_of
from cde_rag.adoption.movable import SourceChangedError, SourceFacts, SourceRow
from cde_rag.adoption.open_webui_setting import EmbeddingSetting
from cde_rag.adoption.positions import is_text
from cde_rag.adoption.text_vectors import OURS
from cde_rag.context.identity import PLAIN
from cde_rag.embedders.protocol import Embedder
from cde_rag.errors import StoreError, counted
from cde_rag.indexing.audit import Source, StoredVector, audit
from cde_rag.models.plain.sentence_transformer_model import QUERY_MODEL
from cde_rag.records import Record
from cde_rag.stamps import stamped

_PAIRS: Final = "pairs"  # note of the collections of a move, by their names
_OTHERS: Final = "others"  # note of the ids of collections that had the new model's vectors before, by their names
_STAMPS: Final = "stamps"  # note of the metadata of new collections
_AS_THEY_ARE: Final = ("user-memory-", "knowledge-bases")  # begin the names of collections with texts embedded so
_LOOKED_AT: Final = 8  # records of a collection that show if they have the new model's vectors already
_END: Final = "\n"  # of a collection's name in an id
_Found = TypeVar("_Found")


class OpenWebUIFolder:
    """Collections of Open WebUI.

    Args:
        target: Name given by the user.
        client: Client of Chroma.
        home: Folder of a move's journal.
        random: Draws samples.
        setting: Embedding model that it has; None if that is not known.
    """

    written_by_old_handles = True

    def __init__(
        self, target: str, client: Any, home: Path, random: Random, setting: EmbeddingSetting | None = None
    ) -> None:
        self.target, self._client, self.home, self._random = target, client, home, random
        self._setting = setting
        self._read = ("", dict[str, dict[str, str]]())  # pairs of the last notes: there may be thousands

    def count(self) -> int:
        """Return the number of records."""
        return self._live().count()

    def stamp(self) -> str | None:
        """Return None: each collection has its own."""
        return None

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random records of all collections that have a text."""
        return self._live().sample(count)

    def found(self) -> SourceFacts:
        """Return length and distance of the vectors in one collection, and the model that Open WebUI has."""
        facts = [self._of(name).found() for name in self._names()[:1]]
        model = None if self._setting is None else str(self._setting)
        return SourceFacts(facts[0].dim, facts[0].distance, model) if facts else SourceFacts(0, "cosine", model)

    def check(self, embedder: Embedder) -> None:
        """Refuse models that Open WebUI cannot load, and collections that are not moved.

        Raises:
            StoreError: See above.
        """
        identity = embedder.context.identity
        if identity.attention != PLAIN or identity.windows or QUERY_MODEL in identity.name:
            raise StoreError(
                f"{self.target}: expected a model that Open WebUI loads or reaches by an API, found {identity.name} "
                "with a context of texts, windows or a second model for queries. Take a plain model."
            )
        for name in self._names():
            self._of(name).check(embedder)

    def version(self) -> str:
        """Return an empty text: Chroma counts no writes."""
        return ""

    def rows(self, notes: Mapping[str, str], *, old: bool) -> Iterator[list[SourceRow]]:
        """Yield the records of all collections of the move; without notes of all that there are."""
        pairs = self._pairs(notes) if notes else {name: dict[str, str]() for name in self._names()}
        for name, pair in self._there(pairs, old=old).items():
            for page in self._of(name).rows(pair, old=old):
                yield [_in(name, row) for row in page]

    def passages(self, *, own: bool = False) -> Iterator[list[tuple[Record, Float32[np.ndarray, " dim"]]]]:
        """Yield the records of all collections that have a text; `collection` in their metadata names it."""
        for name in self._names():
            for page in self._of(name).passages(own=own):
                yield [
                    (
                        Record(
                            f"{name}{_END}{record.id}", record.text, metadata={**record.metadata, "collection": name}
                        ),
                        vector,
                    )
                    for record, vector in page
                ]

    def begin(self, folder: Path, embedder: Embedder) -> dict[str, str]:
        """Make a new collection for each one whose vectors are not the new model's already."""
        live = {str(each.name): str(each.id) for each in self._collections()}
        pairs = {name: self._of(name).begin(folder, embedder) for name in live if self._is_old(name, embedder)}
        others = {name: id_ for name, id_ in live.items() if name not in pairs}
        found = {_PAIRS: pairs, _OTHERS: others, _STAMPS: stamps_of(embedder)}
        return {key: json.dumps(value) for key, value in found.items()}

    def lacking(self, notes: Mapping[str, str], rows: Sequence[SourceRow], *, old: bool) -> list[SourceRow]:
        """Return the rows that the new collections (or the old ones) lack."""
        found = self._each(notes, rows, lambda of, pair, some: of.lacking(pair, some, old=old))
        return [_in(name, row) for name, some in found for row in some]

    def get(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> list[SourceRow]:
        """Return records by id; none of a collection that is gone."""
        there = self._there(self._pairs(notes), old=old)
        asked = [SourceRow(id_, None) for id_ in ids if id_.partition(_END)[0] in there]
        found = self._each(notes, asked, lambda of, pair, some: of.get(pair, [row.id for row in some], old=old))
        return [_in(name, row) for name, some in found for row in some]

    def put(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        vectors: Float32[np.ndarray, "rows dim"],
        *,
        old: bool,
    ) -> None:
        """Write records to their collections; none to one that is gone."""
        places = {row.id: place for place, row in enumerate(rows)}
        there = self._there(self._pairs(notes), old=old)
        for name, some in _by_name(rows).items():
            if name in there:
                made = vectors[[places[f"{name}{_END}{row.id}"] for row in some]]
                self._of(name).put(there[name], some, made, old=old)

    def remove(self, notes: Mapping[str, str], ids: Sequence[str], *, old: bool) -> None:
        """Delete records of collections that are there."""
        there = self._there(self._pairs(notes), old=old)
        asked = [SourceRow(id_, None) for id_ in ids if id_.partition(_END)[0] in there]
        self._each(notes, asked, lambda of, pair, some: of.remove(pair, [row.id for row in some], old=old))

    def seal(self, notes: Mapping[str, str], parked: Float32[np.ndarray, " dim"]) -> dict[str, str]:
        """Return the notes: every write of Chroma is complete.

        Raises:
            SourceChangedError: There are collections that were made since, or made again: they join the move.
        """
        del parked
        pairs, others = dict(self._pairs(notes)), json.loads(notes[_OTHERS])
        late: list[str] = []
        for each in self._collections():
            pair = pairs.get(each.name, {})
            if str(each.id) not in (*pair.values(), others.get(each.name)):
                late.append(each.name)
        for name in late:
            collection = self._of(name)
            if name in pairs:
                collection.release(pairs[name], switched=False)  # new vectors of one that was deleted
            pairs[name] = collection.made(json.loads(notes[_STAMPS]), None)
        if late:
            grown = {**notes, _PAIRS: json.dumps(pairs)}
            raise SourceChangedError(f"{self.target}: found {counted(len(late), 'collection')} made since.", grown)
        return dict(notes)

    def shadow(self, notes: Mapping[str, str], *, old: bool) -> "Together":
        """Return the new collections, or the old ones."""
        pairs = self._there(self._pairs(notes), old=old)
        return Together(
            self.target, [self._of(name).shadow(pair, old=old) for name, pair in pairs.items()], self._random
        )

    def switch(self, notes: Mapping[str, str]) -> float:
        """Exchange each collection with its new one; returns the longest gap of one."""
        return self._exchanged(notes, old=False)

    def rollback(self, notes: Mapping[str, str]) -> float:
        """Exchange each collection with its old one; returns the longest gap of one."""
        return self._exchanged(notes, old=True)

    def is_switched(self, notes: Mapping[str, str], embedder: Embedder) -> bool:
        """Return True if all new collections that are there have their names."""
        pairs = self._there(self._pairs(notes), old=False)
        return all(self._of(name).is_switched(pair, embedder) for name, pair in pairs.items())

    def release(self, notes: Mapping[str, str], *, switched: bool) -> None:
        """Delete the collections that are not in use."""
        for name, pair in self._pairs(notes).items():
            self._of(name).release(pair, switched=switched)

    def line(self, embedder: Embedder, context: Path) -> str:
        """Return the setting of Open WebUI, with that of prefixes; and the collections that came after a switch."""
        del context
        identity = embedder.context.identity
        is_served = identity.pooling == "function"
        name = identity.name if is_served else common_name(identity.name)
        engine = "OpenAI, or the one that serves it, with its address" if is_served else "Default"
        where = f"Admin Panel, Settings, Documents: Embedding Model Engine {engine}; Embedding Model {name}"
        if not is_served and name.count("/") > 1:  # which that page refuses
            given = json.dumps({"RAG_EMBEDDING_ENGINE": "", "RAG_EMBEDDING_MODEL": name})
            where = f"POST /api/v1/retrieval/embedding/update, since Open WebUI's page takes no folder: {given}"
        now = "" if self._setting is None else f" (now {self._setting})"
        prefixes = {"QUERY": identity.prefixes.get("query"), "CONTENT": identity.prefixes.get("document")}
        more = [f"RAG_EMBEDDING_{role}_PREFIX={prefix!r}" for role, prefix in prefixes.items() if prefix]
        rest = f"; then a restart with {' '.join(more)} in its environment" if more else ""
        left = self._left(embedder)
        late = (
            f" Made meanwhile with other vectors: {counted(len(left), 'collection')}, such as {left[0]}. Run "
            "cde-rag release, then this again."
            if left
            else ""
        )
        return f"{where}{now}{rest}. No reindexing.{late}"

    def _collections(self) -> list[Any]:
        """Return the collections with records, by name, without those that a move has made."""
        named = [each for each in self._client.list_collections() if not each.name.endswith((NEW, OLD))]
        return sorted((each for each in named if each.count()), key=lambda each: each.name)

    def _names(self) -> list[str]:
        return [str(each.name) for each in self._collections()]

    def _left(self, embedder: Embedder) -> list[str]:
        """Return the names of collections with other vectors than an embedder's, once a switch to it was made."""
        found = self._collections()
        others = [str(each.name) for each in found if stamped(each.metadata) != embedder.fingerprint]
        if len(others) == len(found):
            return []
        return [name for name in others if self._of(name).sample(1) and self._is_old(name, embedder)]

    def _of(self, name: str) -> ChromaCollection:
        texts = _as_it_is if name.startswith(_AS_THEY_ARE) else _in_a_line
        target = f"{self.target}: {name}"
        return ChromaCollection(target, self._client, name, self.home, self._random, texts=texts, given=True)

    def _live(self) -> "Together":
        """Return the collections in use; during a move those that it moves."""
        there = {each.name for each in self._client.list_collections()}
        names = self._names()
        moved = [name for name in names if not there.isdisjoint((name + NEW, name + OLD))]
        return Together(self.target, [self._of(name) for name in moved or names], self._random)

    def _is_old(self, name: str, embedder: Embedder) -> bool:
        """Return True if a collection has other vectors than an embedder's, or no text to compare."""
        collection = self._of(name)
        return not collection.sample(1) or audit(collection, embedder, sample=_LOOKED_AT).share < OURS

    def _pairs(self, notes: Mapping[str, str]) -> dict[str, dict[str, str]]:
        if self._read[0] != notes[_PAIRS]:
            self._read = (notes[_PAIRS], json.loads(notes[_PAIRS]))
        return self._read[1]

    def _there(self, pairs: Mapping[str, dict[str, str]], *, old: bool) -> dict[str, dict[str, str]]:
        """Return the pairs of which one side is there: Open WebUI deletes collections with their files."""
        ids = {str(each.id) for each in self._client.list_collections()}
        side = "old" if old else "new"
        return {name: pair for name, pair in pairs.items() if not pair or pair[side] in ids}

    def _each(
        self,
        notes: Mapping[str, str],
        rows: Sequence[SourceRow],
        call: Callable[[ChromaCollection, dict[str, str], list[SourceRow]], _Found],
    ) -> list[tuple[str, _Found]]:
        """Call for the rows of each collection, with their ids in it."""
        pairs = self._pairs(notes)
        return [(name, call(self._of(name), pairs[name], some)) for name, some in _by_name(rows).items()]

    def _exchanged(self, notes: Mapping[str, str], *, old: bool) -> float:
        pairs, gaps = self._pairs(notes), [0.0]
        for name, pair in self._there(pairs, old=old).items():
            collection = self._of(name)
            if name in self._there({name: pair}, old=not old):
                gaps.append(collection.rollback(pair) if old else collection.switch(pair))
            else:  # the one in use was deleted with its file
                collection.release(pair, switched=old)
        return max(gaps)


class Together:
    """Records of several collections, for an audit.

    Args:
        target: Name in reports.
        sources: The collections.
        random: Draws samples.
    """

    def __init__(self, target: str, sources: Iterable[Source], random: Random) -> None:
        self.target, self._sources, self._random = target, list(sources), random

    def count(self) -> int:
        """Return the number of records."""
        return sum(source.count() for source in self._sources)

    def stamp(self) -> str | None:
        """Return None: each collection has its own."""
        return None

    def sample(self, count: int) -> list[StoredVector]:
        """Draw random records that have a text, of each collection in proportion."""
        counts = [source.count() for source in self._sources]
        wanted = min(count, sum(counts))
        places = self._random.sample(range(len(counts)), wanted, counts=counts) if wanted else []
        drawn = [self._sources[place].sample(many) for place, many in sorted(Counter(places).items())]
        return [each for some in drawn for each in some]


def _by_name(rows: Iterable[SourceRow]) -> dict[str, list[SourceRow]]:
    """Return rows by their collections, with their ids in these."""
    found: dict[str, list[SourceRow]] = {}
    for row in rows:
        name, _, id_ = row.id.partition(_END)
        found.setdefault(name, []).append(row._replace(id=id_))
    return found


def _in(name: str, row: SourceRow) -> SourceRow:
    return row._replace(id=f"{name}{_END}{row.id}")


def _as_it_is(document: Any, metadata: Any) -> str | None:
    del metadata
    return document if is_text(document) else None


def _in_a_line(document: Any, metadata: Any) -> str | None:
    """Return a text as Open WebUI embeds those of files: without line breaks."""
    found = _as_it_is(document, metadata)
    return None if found is None else found.replace("\n", " ")
