"""Demo: the documentation, indexed in its own context and in the null context, and compared with BM25."""

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from cde_rag.collection.collection import Collection
from cde_rag.context.cache import cache_folder
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import StoreError, TruncationWarning
from cde_rag.evaluation.bm25 import BM25
from cde_rag.evaluation.demo_corpus import PARENT_KEY, documentation, documentation_digest
from cde_rag.evaluation.demo_questions import questions
from cde_rag.indexing.upsert import Progress
from cde_rag.model import CDEModel
from cde_rag.records import embedded_text
from cde_rag.stores.base import Hit, Record
from cde_rag.stores.faiss import FaissStore

COLLECTIONS = ("own", "null")
STORED = ("hybrid", *COLLECTIONS)  # systems that need nothing beside the collections
SYSTEMS = (*STORED, "bm25")
STATE = "demo.json"  # beside the collections: what they are of, and whether they are complete


def default_folder() -> Path:
    """Return the demo's folder in the user's cache folder."""
    return cache_folder() / "demo"


class Demo:
    """Searchable documentation of the running Python.

    The first use indexes it; an interrupted run resumes at the next use. If Python, its packages or the model have
    changed since, it is indexed again.

    Args:
        folder: Folder of the collections, and of nothing else.
        model: As in `ContextualEmbedder`.
        on_progress: Called with "own" and then with "null" while the documentation is indexed.

    Raises:
        CorpusError: This Python came without the sources of its standard library.
        StoreError: The folder holds something else, or is not writable.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str | Path = "cde-mini",
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> None:
        self.folder = folder
        self._model = CDEModel.from_pretrained(model)
        wanted = {"documentation": documentation_digest(), "weights": self._model.identity.weights_sha256}
        if self._state() != {**wanted, "complete": True}:
            self._index(wanted, on_progress)
        self.own, self.null = (Collection.open(self._store(name), model=self._model) for name in COLLECTIONS)

    def ask(self, question: str, k: int = 5, *, systems: Sequence[str] = SYSTEMS) -> dict[str, list[Hit]]:
        """Search with each system, best results first.

        Args:
            question: In the user's words.
            k: Hits of each system.
            systems: "own" (the documentation's own context), "hybrid" (that and words), "null" (the null context),
                "bm25".

        Raises:
            CorpusError: The question is blank or no valid Unicode.
            MissingExtraError: BM25's packages are not installed.
        """
        search = {
            "hybrid": self.own.searcher("hybrid").search,
            "own": self.own.search,
            "null": self.null.search,
            "bm25": self._search_words,
        }
        return {system: search[system](question, k) for system in systems}

    def check(self, k: int = 5) -> dict[str, float]:
        """Return, for each system, the share of the committed questions that one of its first k hits answers."""
        asked = questions()
        answers = [(self.ask(question.text, k), question.answers) for question in asked]
        found = {
            system: sum(any(hit.id in right for hit in hits[system]) for hits, right in answers) for system in SYSTEMS
        }
        return {system: count / len(asked) for system, count in found.items()}

    def close(self) -> None:
        """Release the collections."""
        self.own.close()
        self.null.close()

    def _index(self, wanted: dict[str, Any], on_progress: Callable[[str, Progress], None] | None) -> None:
        state = self._state()
        if state is None and self.folder.is_dir() and any(self.folder.iterdir()):
            raise StoreError(f"{self.folder} holds other files than a demo's. Name an empty or a new folder.")
        if state != {**wanted, "complete": False}:
            for name in COLLECTIONS:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self._write_state({**wanted, "complete": False})
        records: list[Record] = []
        for name in COLLECTIONS:
            if on_progress is not None:
                on_progress(name, Progress(0, len(records) or None, 0.0))  # reading takes some seconds
            records = records or list(documentation())
            with self._collection(name, records) as collection, warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # what a docstring is for stands at its beginning
                collection.add_records(records, on_progress=on_progress and partial(on_progress, name))
        self._write_state({**wanted, "complete": True})

    def _collection(self, name: str, records: Sequence[Record]) -> Collection:
        store = self._store(name)
        if store.exists():
            return Collection.open(store, model=self._model)
        if name == "null":
            embedder = ContextualEmbedder(self._model, Context.null(self._model))
        else:
            embedder = ContextualEmbedder.from_corpus(map(embedded_text, records), model=self._model)
        return Collection.create(store, embedder, parent_key=PARENT_KEY)

    def _store(self, name: str) -> FaissStore:
        return FaissStore(self.folder / name)

    def _search_words(self, question: str, k: int) -> list[Hit]:
        records, index = self._words
        found = ((records[position], score) for position, score in index.search(question, k))
        return [Hit(record.id, score, record.title, record.text, record.metadata) for record, score in found]

    @cached_property
    def _words(self) -> tuple[list[Record], BM25]:
        records = list(self.own.scroll())
        return records, BM25([embedded_text(record) for record in records])

    def _state(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder / STATE).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self.folder / STATE} is not readable: {error}. Remove {self.folder}; it is only a cache."
            ) from error

    def _write_state(self, state: dict[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            written = self.folder / f"{STATE}.new"
            written.write_text(json.dumps(state), encoding="utf-8")
            written.replace(self.folder / STATE)
        except OSError as error:
            raise StoreError(f"{self.folder} is not writable: {error.strerror}. Name another folder.") from error
