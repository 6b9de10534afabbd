"""Demo: documentation of Python and its packages, indexed with its context and as plain vectors, to compare."""

import json
import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from cde_rag._files import read_file, user_path
from cde_rag.collection.collection import Collection
from cde_rag.context.cache import cache_folder
from cde_rag.embedders.contextual import ContextualEmbedder, as_model
from cde_rag.embedders.corpus_contexts import first_context
from cde_rag.errors import StoreError, TruncationWarning
from cde_rag.evaluation.demo_corpus import MODULES, PARENT_KEY, documentation, documentation_digest
from cde_rag.evaluation.demo_questions import Question, questions
from cde_rag.evaluation.readme_sections import readme_sections, readme_versions
from cde_rag.indexing.upsert import Progress
from cde_rag.records import Hit, Record, embedded_text
from cde_rag.stores.faiss import FaissStore

COLLECTIONS = ("own", "plain")
SYSTEMS = ("hybrid", "own", "plain", "bm25")
DEPTH = 10  # ranks at which an answer counts as found
STATE = "demo.json"  # beside the collections: what they are of, and whether they are complete


def default_folder() -> Path:
    """Return the demo's folder in the user's cache folder."""
    return cache_folder() / "demo"


class QuestionRanks(NamedTuple):
    """Rank of the first right answer to a question, by system; None where it is not among the first ten."""

    question: Question
    of: dict[str, int | None]


class Demo:
    """Searchable documentation of the running Python and of its packages.

    The pages are modules, with their definitions as passages, and the READMEs of packages, with their sections.

    The first use indexes it; an interrupted run resumes at the next use. If Python, its packages or the model have
    changed since, it is indexed again.

    Args:
        folder: Folder of the collections, and of nothing else.
        model: As in `ContextualEmbedder`.
        everything: Index the docstrings of the whole standard library and of the installed packages, which takes
            minutes.
        on_progress: Called with "own" and then with "plain" while the documentation is indexed.

    Raises:
        CorpusError: This Python came without the sources of its standard library.
        MissingExtraError: The extra `files` is not installed.
        StoreError: The folder holds something else, or is not writable.
    """

    def __init__(
        self,
        folder: Path,
        *,
        model: str | Path = "cde-mini",
        everything: bool = False,
        on_progress: Callable[[str, Progress], None] | None = None,
    ) -> None:
        self.folder = user_path(folder)
        self._model = as_model(model)
        self._modules = None if everything else MODULES
        wanted = {
            "documentation": documentation_digest(self._modules),
            "readmes": readme_versions(),
            "weights": self._model.identity.weights_sha256,
        }
        if self._state() != {**wanted, "complete": True}:
            self._index(wanted, on_progress)
        self.own, self.plain = (Collection.open(self._store(name), model=self._model) for name in COLLECTIONS)

    def ask(self, question: str, k: int = 5, *, systems: Sequence[str] = SYSTEMS) -> dict[str, list[Hit]]:
        """Search with each system, best results first.

        Args:
            question: In the user's words.
            k: Hits of each system.
            systems: "own" (vectors in the documentation's context, entries with those of their module), "hybrid" (that
                and words), "plain" (vectors of each entry alone, without context), "bm25" (words).

        Raises:
            CorpusError: The question is blank or no valid Unicode.
        """
        search = {
            "hybrid": self.own.searcher("hybrid").search,
            "own": self.own.searcher("vectors").search,
            "plain": self.plain.searcher("vectors").search,
            "bm25": self.own.searcher("bm25").search,
        }
        return {system: search[system](question, k) for system in systems}

    def ranks(self, kind: str) -> list[QuestionRanks]:
        """Return the rank of the first right answer of each system to each question of a kind.

        Args:
            kind: "questions", twenty in users' words, which name no page; or "sections", names of page and section.
        """
        asked = {"questions": questions, "sections": lambda: self._readmes[1]}[kind]()
        found: list[QuestionRanks] = []
        for question in asked:
            hits = self.ask(question.text, DEPTH)
            places = {
                system: [place for place, hit in enumerate(listed, 1) if hit.id in question.answers]
                for system, listed in hits.items()
            }
            found.append(
                QuestionRanks(question, {system: min(right, default=None) for system, right in places.items()})
            )
        return found

    def close(self) -> None:
        """Release the collections."""
        self.own.close()
        self.plain.close()

    @cached_property
    def _readmes(self) -> tuple[list[Record], list[Question]]:
        return readme_sections()

    def _index(self, wanted: dict[str, Any], on_progress: Callable[[str, Progress], None] | None) -> None:
        state = self._state()
        if state is None and self.folder.is_dir() and any(self.folder.iterdir()):
            raise StoreError(f"{self.folder} holds other files than a demo's. Name an empty or a new folder.")
        sections, _ = self._readmes
        if state != {**wanted, "complete": False}:
            for name in COLLECTIONS:
                shutil.rmtree(self.folder / name, ignore_errors=True)
            self._write_state({**wanted, "complete": False})
        records: list[Record] = []
        for name in COLLECTIONS:
            if on_progress is not None:
                on_progress(name, Progress(0, len(records) or None, 0.0))  # reading takes some seconds
            records = records or [*documentation(self._modules), *sections]
            with self._collection(name, records) as collection, warnings.catch_warnings():
                warnings.simplefilter("ignore", TruncationWarning)  # what a docstring is for stands at its beginning
                collection.add_records(records, on_progress=on_progress and partial(on_progress, name))
        self._write_state({**wanted, "complete": True})

    def _collection(self, name: str, records: Sequence[Record]) -> Collection:
        store = self._store(name)
        if store.exists():
            return Collection.open(store, model=self._model)
        if name == "plain":
            return Collection.create(store, ContextualEmbedder(self._model, first_context(self._model)))
        embedder = ContextualEmbedder.from_corpus(map(embedded_text, records), model=self._model)
        return Collection.create(store, embedder, parent_key=PARENT_KEY)

    def _store(self, name: str) -> FaissStore:
        return FaissStore(self.folder / name)

    def _state(self) -> dict[str, Any] | None:
        try:
            return json.loads(read_file(self.folder / STATE))
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
