"""A collection: an embedder and a store that hold one vector space together.

Long because every method documents its arguments and errors; the procedures are in `indexing` and `search`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, cast, overload

from cde_rag._validation import (
    check_ids,
    check_positive,
    check_whole,
    named_keywords,
    named_keywords_with,
    unknown_attribute,
)
from cde_rag.collection.first_context import move, moves_at
from cde_rag.collection.info import Inspection, inspect, verify
from cde_rag.collection.settings import HYBRID_WEIGHT, create_in, settings_of
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.active import SWITCHES, ActiveEmbedder, loaded, stored_context, too_many_switches
from cde_rag.embedders.contextual import AnyModel
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.errors import ContextMismatchError, CorpusError, StoreError, counted, warn_of_old_name
from cde_rag.indexing import recontextualization
from cde_rag.indexing.audit import SAMPLE, Audit, audit_collection
from cde_rag.indexing.backfill import Recontextualization, roll_back
from cde_rag.indexing.canary import Canary
from cde_rag.indexing.drift import PROBES, Drift, measure_drift
from cde_rag.indexing.headers import with_headers
from cde_rag.indexing.pending import EmbedReport, OnDemandVectors, fill
from cde_rag.indexing.recontextualization import Estimate, Wanted
from cde_rag.indexing.replacement import DocumentRecords, locate
from cde_rag.indexing.upsert import AddPlan, AddReport, Progress, Upserter
from cde_rag.indexing.upsert_plan import first_records
from cde_rag.readers import Fields, ReadingRules, RecordReader
from cde_rag.readers.columns import FIELDS, kept_fields
from cde_rag.readers.reading_rules import READING, reading_of
from cde_rag.records import Hit, Record, embedded_text, from_columns
from cde_rag.search.calibration import ScoreCalibration, calibrate, calibrate_or_warn, calibrated_at
from cde_rag.search.fusion import CANDIDATES, Fusion, Ranking, check_fusion, marginal_relevance, ranking_of
from cde_rag.search.grouping import Group, ParentHit
from cde_rag.search.retrievers import BM25Retriever, DenseRetriever, HybridRetriever, Rerank
from cde_rag.search.searcher import RERANKED, Searcher
from cde_rag.stores.base import Damage, ProcessBound
from cde_rag.stores.filters import check_narrows
from cde_rag.stores.kinds import check_there, store_at, temporary_store
from cde_rag.stores.store import Store
from cde_rag.stores.tenant_names import check_names_a_tenant, stamped
from cde_rag.transfer.backup import Backup, back_up, check_no_tenants, restore
from cde_rag.transfer.parquet import Transfer, export_collection, import_collection

EMBED_BUDGET_MS: Final = 1000  # of a search while records wait for their vectors
When: TypeAlias = Literal["first", "later"]
"""Values of `embed` in `add`: make vectors before records are written, or after."""

_TRIES: Final = 8  # of a search whose hits are deleted while it reads their vectors
_ADD: Final = "collection.add(texts, ids=…, metadata=…)"
_MEANT: Final = {  # names of other libraries
    **dict.fromkeys(("query", "similarity_search", "retrieve", "invoke"), "collection.search(query, k)"),
    **dict.fromkeys(("upsert", "update", "insert", "add_texts", "add_documents", "index"), _ADD),
    **dict.fromkeys(("embed", "encode", "embed_documents"), "collection.embedder.embed_documents(texts)"),
    **dict.fromkeys(("embed_query", "embed_queries"), "collection.embedder.embed_queries([query])"),
    **dict.fromkeys(("remove", "drop"), "collection.delete(ids)"),
    **dict.fromkeys(("peek", "documents", "records"), "collection.scroll()"),
    **dict.fromkeys(("size", "length"), "len(collection)"),
    **dict.fromkeys(("save", "persist", "commit"), "nothing: records are on disk when add returns"),
}


class Collection(ProcessBound):
    """Searchable records in a store, embedded in one context. Thread-safe for reading and adding.

    With a `parent_key`, records with the same value of this metadata field are the passages of one parent, in order of
    insertion, and each is embedded with its siblings. If the passages of a parent change, those with other siblings
    than before are embedded again. (Two processes that change one parent at the same time may miss each other's
    siblings; adding the parent again repairs that. If they change one record of a Qdrant server at the same time, the
    later write wins, with the title and metadata that it read a moment before; a folder and PostgreSQL keep both.)

    Args:
        store: Holds a collection already; see `create` and `open`.
        embedder: Embedder of the store's active vector space.

    Attributes:
        embed_budget_ms: Milliseconds in which a hybrid search makes vectors of its best hits by words that wait for
            theirs; 0 for none. It can be set.

    Raises:
        ContextMismatchError: The embedder is of another vector space.
        StoreError: There is no collection in the store.
        TenantError: The store has a collection per tenant; see `cde_rag.Tenants`.
    """

    @named_keywords_with("Collection.open(place) opens a stored collection, Collection.from_texts(texts) makes one.")
    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._settings = store.manifest().settings
        check_names_a_tenant(self._settings)
        self._active = active = ActiveEmbedder(store, embedder)
        self.store = store
        self.parent_key: str | None = self._settings["parent_key"]
        self.embed_budget_ms: int = EMBED_BUDGET_MS
        self._by_vectors = DenseRetriever(store, active)
        self._on_demand = OnDemandVectors(store, self.parent_key)
        self._searcher = Searcher(store, self.parent_key, self._by_vectors, lambda: active.last.fingerprint)
        self._writer = Upserter(store, active, self._settings)
        self._until_due = 0.0  # records, until this one looks at their number for what it does as it grows

    @property
    def embedder(self) -> Embedder:
        """Embedder of the active vector space; can be set to another of that space, such as on another device."""
        return self._active.embedder

    @embedder.setter
    def embedder(self, embedder: Embedder) -> None:
        self._active.embedder = embedder

    @classmethod
    @named_keywords_with("Such as: Collection.create(place, ContextualEmbedder.from_corpus(texts)).")
    def create(
        cls,
        store: Store | str | Path,
        embedder: Embedder,
        *,
        parent_key: str | None = None,
        headers: Sequence[str] = (),
    ) -> "Collection":
        """Make an empty collection in an empty store.

        Args:
            store: A store without a collection; or the path of a new folder, "papers.faiss", or "papers.qdrant" for
                Qdrant Edge; or an address, "postgresql://me@localhost/app/papers".
            embedder: Such as a ContextualEmbedder, whose context is stored with the vectors, or a PlainEmbedder.
            parent_key: The metadata field that names a record's parent, by its name in filters.
            headers: Metadata fields, such as "section", whose values extend a record's title: "Install >
                Linux" is embedded in front of the text and found by BM25.

        Raises:
            StoreError: There is a collection already, or the place is not writable or inside another collection's.
            TypeError: That is no store and no path, or no embedder; or one `str` in place of headers.
            ValueError: A key that is empty or one of and, or, not; or a `parent_key` for a model that reads no
                siblings.
        """
        store = _store_at(store)
        if not isinstance(cast(object, embedder), Embedder):
            hint = " Rename its method rebound to with_context." if hasattr(embedder, "rebound") else ""
            raise TypeError(
                f"Expected an embedder, such as ContextualEmbedder.from_corpus(texts), found {embedder!r:.80}.{hint}"
            )
        create_in(store, embedder, settings_of(embedder, parent_key, headers))
        return cls(store, embedder)

    @classmethod
    @named_keywords
    def open(
        cls,
        store: Store | str | Path,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> "Collection":
        """Open an existing collection, with its context and model.

        Args:
            store: Store of the collection, the path of its folder, or its address.
            model: A folder or model in place of the name that is stored with the collection; or an embedder of the
                model that it was made with, such as a PlainEmbedder or FunctionEmbedder.
            options: Device, dtype and batch size; they stay when the collection moves to another Context or model. A
                given embedder has its own device, dtype and runtime, and by default its own batch size and pool.

        Raises:
            ContextFormatError: The stored context is damaged, or of a newer format.
            ContextMismatchError: The model has other weights than the one that made the vectors.
            ModelError: There is no model of the stored name.
            StoreError: There is no collection in the store, or it is damaged.
            TypeError: That is no store and no path; or a device, dtype or runtime for a model that is loaded.
        """
        place, store = store, _store_at(store)
        if isinstance(place, str | Path):
            check_there(place, store)
        for _ in range(SWITCHES):
            embedder = loaded(stored_context(store), model=model, options=options)
            with suppress(ContextMismatchError):  # another generation was activated since its Context was read
                return cls(store, embedder)
        raise too_many_switches()

    @classmethod
    @named_keywords
    def from_texts(
        cls,
        texts: Iterable[str],
        *,
        store: Store | str | Path | None = None,
        model: "AnyModel" = "cde-mini",
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        parent_key: str | None = None,
        headers: Sequence[str] = (),
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "Collection":
        """Make a collection of texts in a context sampled from them: `create` and `add` in one call.

        Args:
            texts: As in `add`, like `ids`, `titles`, `metadata` and `on_progress`; all are held in memory.
            store: As in `create`. None for a temporary folder, which is deleted with the collection or when the process
                ends; it needs the extra `faiss`.
            model: As in `ContextualEmbedder.from_corpus`, like `options`.
            options: Device, dtype, runtime, batch size and pool of workers.
            ids: Unique ids.
            titles: Embedded before each text.
            metadata: JSON objects, for filters.
            parent_key: As in `create`, like `headers`.
            headers: Metadata fields whose values extend a record's title.
            on_progress: Called after each write, every few seconds.

        Raises:
            CorpusError: A record cannot be used, or there is none; nothing is made.
            MissingExtraError: No store is given, and faiss is not installed.
            StoreError: There is a collection already: `Collection.open(…)`.

        Warns:
            SmallContextWarning: The corpus has fewer than 64 documents.
            TruncationWarning: Records exceeded the model's token limit, with their number.

        Examples:
            >>> notes = Collection.from_texts(f"Note {n}: swifts sleep on the wing." for n in range(64))
            >>> notes.search("birds in flight", k=1)[0].text[:4]
            'Note'
        """
        from cde_rag.embedders.contextual import ContextualEmbedder

        columns = from_columns(texts, ids=ids, titles=titles, metadata=metadata, parent_key=parent_key)
        records = first_records(columns, parent_key)
        store = _new_store(store)
        sample = (embedded_text(record) for record in records)
        embedder = ContextualEmbedder.from_corpus(sample, model=model, options=options)
        made = cls.create(store, embedder, parent_key=parent_key, headers=headers)
        made.add_records(records, on_progress=on_progress)
        return made

    @classmethod
    @named_keywords
    def from_files(
        cls,
        *sources: str | Path,
        fields: Fields | None = None,
        store: Store | str | Path | None = None,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "Collection":
        """Make a collection of files and folders, or bring one up to date, as `cde-rag index` does without options.

        A file of a folder that cannot be read is left out. A collection that is there keeps its context; changed
        files are embedded anew, and passages of files that are gone stay.

        Args:
            sources: At least one, as in `cde_rag.readers.RecordReader`: folders, text files, files of records.
            fields: Fields of rows that hold id, text and title, such as `Fields(text="body", title="subject")`.
                A collection keeps them.
            store: As in `from_texts`, like `options` and `on_progress`; or the place of a collection that is there.
            model: As in `from_texts`. None: the collection's own, or cde-mini of a new one.
            options: Device, dtype, runtime, batch size and pool of workers.
            on_progress: Called after each write, every few seconds.

        Raises:
            ContextMismatchError: The collection was made with another model.
            CorpusError: A source that does not exist or, named itself, cannot be read, or no text in any; nothing is
                written.
            MissingExtraError: No store is given, and faiss is not installed; or a file needs the extra `documents`.
            StoreError: The collection is damaged, or cannot be written.
            TypeError: No source.

        Warns:
            SmallContextWarning: The sources have fewer than 64 passages.
            UnreadFilesWarning: Files of a folder were left out, or files were read in a guessed encoding.

        Examples:
            >>> import tempfile
            >>> folder = Path(tempfile.mkdtemp())
            >>> _ = [(folder / f"{n}.md").write_text(f"Note {n}: swifts sleep on the wing.") for n in range(64)]
            >>> notes = Collection.from_files(folder)
            >>> notes.search("how do swifts sleep?", k=1)[0].text[:4]
            'Note'
        """
        from cde_rag.embedders.contextual import ContextualEmbedder, as_model
        from cde_rag.embedders.corpus_contexts import contextual_identity, sampled

        if not sources:
            raise TypeError(
                'Expected files or folders, found none: Collection.from_files("docs/", store="docs.faiss").'
            )
        place = temporary_store() if store is None else _store_at(store)
        reader = RecordReader(*sources, fields=fields, skip_bad="in folders", guess_encoding=True)
        if place.exists():
            made = cls.open(place, model=model, options=options)
            reader.fields = replace(reader.fields, parent=made.parent_key)
            made.prepare_reader(reader)
            if not sum(1 for _ in reader) and not reader.skipped:  # all are read: a bad record is reported first
                raise CorpusError(f"{', '.join(map(str, sources))}: expected documents, found none.")
        else:
            loaded = as_model(model or "cde-mini", options)
            reader.count_tokens_of(loaded)
            sample = (embedded_text(record) for record in reader)
            context = sampled(loaded, contextual_identity(loaded), sample, None, seed=0, unit="passage")
            embedder = ContextualEmbedder(loaded, context, options=options.of_loaded)
            made = cls.create(place, embedder, parent_key=reader.fields.parent if embedder.max_siblings else None)
        made.add_records(reader, on_progress=on_progress)
        reader.warn_of_unread()
        return made

    @classmethod
    @named_keywords
    def restore(
        cls,
        folder: str | Path,
        store: Store | str | Path,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> "Collection":
        """Restore a collection from its `backup`, and open it. Every file is compared with its checksum first.

        Args:
            folder: Folder of the backup; not modified.
            store: As in `create`. A FaissStore for the backup of one, a store of any kind for other backups.
            model: As in `open`, like `options`.
            options: Device, dtype, runtime, batch size and pool of workers.

        Raises:
            ModelError: There is no model of the stored name. The collection is restored: open it with `model=…`.
            StoreError: There is a collection already, the store cannot be written or is of another kind, or the backup
                holds a link.
            StoreFormatError: The backup is damaged, of a newer format, or no backup.
            TenantError: It is a backup of tenants, which `cde_rag.transfer.backup.restore` restores.
        """
        check_no_tenants(folder)
        store = _store_at(store)
        restore(folder, store)
        return cls.open(store, model=model, options=options)

    @classmethod
    @named_keywords
    def import_(
        cls,
        path: str | Path,
        store: Store | str | Path,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
        on_progress: Callable[[Progress], None] | None = None,
    ) -> "Collection":
        """Import the file of an `export` into an empty store of any kind, and open it; nothing is embedded.

        The complete file is read and verified before anything is written. After a crash the collection cannot be
        opened, and the same call resumes.

        Args:
            path: Path of the file.
            store: As in `create`.
            model: As in `open`, like `options`.
            options: Device, dtype, runtime, batch size and pool of workers.
            on_progress: Called after each row group.

        Raises:
            ContextFormatError: The Context in the file is damaged, or of a newer format.
            MissingExtraError: pyarrow is not installed.
            ModelError: There is no model of the stored name. The collection is imported: open it with `model=…`.
            StoreError: There is a collection in the store already, or it cannot be written.
            StoreFormatError: The file is truncated, changed, of a newer format, or no export.
        """
        store = _store_at(store)
        import_collection(path, store, on_progress=on_progress)
        return cls.open(store, model=model, options=options)

    @overload
    def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[False] = False,
    ) -> AddReport: ...

    @overload
    def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[True],
    ) -> AddPlan: ...

    @named_keywords
    def add(
        self,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        titles: Iterable[str | None] | None = None,
        metadata: Iterable[Mapping[str, Any] | None] | None = None,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: bool = False,
    ) -> AddReport | AddPlan:
        """Upsert texts: add them, or replace those of the same id. Streams: any iterable, chunk by chunk.

        A call is not atomic: parts of some seconds are written one by one, and stay after an error or a kill. Repeating
        an interrupted call completes it; unchanged records are not embedded again.

        Args:
            texts: Texts to embed (after their titles) and to search.
            ids: Unique; a digest of title, text and parent by default, so that adding twice has no effect.
            titles: Embedded before each text. None, for all or for one: the record keeps its title if it is there;
                "" removes it.
            metadata: JSON objects, for filters, each in place of the stored one. None, for all or for one: the record
                keeps its metadata if it is there; `{}` removes them.
            embed: "first", or "later": records are written at once, found by words, and wait for their vectors until
                `embed_pending`, an `add` that embeds them, or a search makes them. Changed records wait again.
            on_progress: Called after each write, every few seconds.
            dry_run: True: count what would be written and embedded, an AddPlan, and change nothing.

        Raises:
            CorpusError: A record cannot be used, the columns are not equally long, or an id comes twice with different
                texts. Nothing of its chunk, 512 records or more, is written; the chunks before stay.
            TypeError: One `str` where a list is due.
            ValueError: `embed` is neither "first" nor "later".

        Warns:
            TruncationWarning: Records exceeded the model's token limit, with their number.
        """
        records = from_columns(texts, ids=ids, titles=titles, metadata=metadata, parent_key=self.parent_key)
        if dry_run:
            return self._planned(records)
        total, prepared = (
            len(texts) if isinstance(texts, Sized) else None,
            _prepared(records, self._settings, self._active.last),
        )
        later = _is_later(embed)
        return self._finished(self._writer.add(prepared, total, on_progress, later=later), later=later)

    @overload
    def add_records(
        self,
        records: Iterable[Record],
        *,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        at_once: bool = False,
        dry_run: Literal[False] = False,
    ) -> AddReport: ...

    @overload
    def add_records(
        self,
        records: Iterable[Record],
        *,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        at_once: bool = False,
        dry_run: Literal[True],
    ) -> AddPlan: ...

    @named_keywords
    def add_records(
        self,
        records: Iterable[Record],
        *,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        at_once: bool = False,
        dry_run: bool = False,
    ) -> AddReport | AddPlan:
        """Add records, or replace those of the same id; streams, raises and warns like `add`.

        Text documents of a RecordReader, which are split into passages, are replaced: passages that a document has no
        longer are deleted after its new ones are written. A file has one id, whether it is given by itself or in a
        folder. A document that cannot be read, or that is no longer among the sources, keeps its passages.

        A record is complete, as are the rows of files and tables: one without title or metadata removes those that are
        stored. `add` with ids changes texts alone.

        The `fields` of a RecordReader are kept, and a later one without reads by them the files of rows that have them.

        Args:
            records: Records.
            embed: As in `add`, like `on_progress`.
            on_progress: Called after each write.
            at_once: True: make all vectors before the first write, where parts are written every few seconds otherwise.
                If a text cannot be embedded, nothing is written (of more than 512 records, nothing of their chunk).
            dry_run: As in `add`.

        Raises:
            StoreError: The collection has passages of another folder with the same name as one of the reader's.
        """
        if dry_run:
            return self._planned(records)
        total = len(records) if isinstance(records, Sized) else None
        documents = _documents_of(records, self.store)
        self._keep_reading(records)
        prepared = _prepared(records, self._settings, self._active.last)
        later = _is_later(embed)
        report = self._writer.add(prepared, total, on_progress, documents=documents, at_once=at_once, later=later)
        self.keep_fields(records)
        return self._finished(report, later=later)

    def _finished(self, report: AddReport, *, later: bool) -> AddReport:
        """Note that records were added, and grow where that is due, unless their vectors are to be made later."""
        self._until_due -= report.added
        if self._until_due <= 0 and not later:
            self._grow()
        return report

    def _grow(self) -> None:
        """Move a collection that began without documents, and calibrate one that grew, if due and all have vectors."""
        if self.pending:
            return
        records = self.store.count()
        self._move_if_due(records)
        due = self._calibrated(records, self._active.last.fingerprint)
        self._until_due = min(due, moves_at(self._settings)) - records

    def _move_if_due(self, records: int) -> bool:
        """Move a collection of so many records that began without documents, if due; return False if that failed."""
        moved = True
        if records >= moves_at(self._settings):
            self._settings = self.store.manifest().settings  # another process may have moved it
            if records >= moves_at(self._settings):
                moved = move(self)
                self._settings = self.store.manifest().settings
        return moved

    def _calibrated(self, records: int, fingerprint: str) -> float:
        """Calibrate so many records in a space if that is due; return the number at which it is due again."""
        due = calibrated_at(self._settings, fingerprint)
        if records < due:
            return due
        manifest = self.store.manifest()  # another process may have calibrated it
        due = calibrated_at(manifest.settings, manifest.fingerprint)
        if records < due or self.pending:
            return due
        if calibrate_or_warn(self.calibrate):
            return calibrated_at(self._settings, manifest.fingerprint)
        return 2.0 * records

    def calibrate(self) -> ScoreCalibration | None:
        """Measure the scores of random letters and of the collection's own passages, for the scale of hybrid scores.

        Collections are calibrated by themselves as they grow from 64 records on, and when they move to another
        Context; where that fails, they stay as they were, with a warning. One that an earlier version made is searched
        without a scale until this call.

        Returns:
            None if the model has no vector of random letters; scores have no scale then.

        Raises:
            ContextMismatchError: The collection was moved to another model, which is not here under its name.
            StoreError: The collection is empty, records wait for their vectors, or the store cannot be written.
        """
        if not self.store.count():
            raise StoreError("Expected documents, found an empty collection: there is nothing to calibrate on.")
        if pending := self.pending:
            raise StoreError(
                f"Expected vectors of all records, found {counted(pending, 'record')} without. Call embed_pending() "
                "first."
            )
        made = self._active.use(lambda embedder: calibrate(self.store, embedder))
        self._settings = self.store.manifest().settings
        return made

    @named_keywords
    def embed_pending(
        self, *, limit: int | None = None, on_progress: Callable[[Progress], None] | None = None
    ) -> EmbedReport:
        """Embed records that wait for their vectors since an `add(…, embed="later")`.

        Others may search and write meanwhile, and several processes may fill; each part of some seconds stays after a
        kill, and the same call goes on.

        Args:
            limit: Maximum number of vectors; None for all.
            on_progress: Called after each write; `done` are the records that have vectors.

        Raises:
            CorpusError: Records that the model refuses when they come alone, by whatever error, with an id; all others
                have their vectors. Where it embeds nothing else either, its own error is raised at once.
            StoreError: The store cannot be written.
            ValueError: `limit` is below 1.

        Warns:
            TruncationWarning: Records exceeded the model's token limit, with their number.
        """
        limit = None if limit is None else check_positive(limit, "limit")
        # before vectors are made that it would make again
        moved = not self.pending or self._move_if_due(self.store.count())
        report = fill(self.store, self._active, self.parent_key, limit, on_progress)
        if moved:  # else it would be tried, and warned of, once more
            self._grow()
        return report

    @property
    def pending(self) -> int:
        """Number of records that wait for their vectors."""
        return self.store.count_pending()

    def _planned(self, records: Iterable[Record]) -> AddPlan:
        """Count the writes and embeddings of `add_records`."""
        documents = _documents_of(records, self.store)
        self.prepare_reader(records)
        return self._writer.plan(_prepared(records, self._settings, self._active.last), documents)

    def prepare_reader(self, records: Iterable[Record]) -> ReadingRules | None:
        """Let a reader read files as this collection does, by its rules, fields and tokens, unless it has others.

        `add_records` does so by itself; call it to see the passages before.

        Args:
            records: A RecordReader; other records are passed over.

        Returns:
            The rules that the reader follows; None if it splits no files.

        Raises:
            StoreFormatError: A newer version of the library made the collection.
        """
        if not isinstance(records, RecordReader):
            return None
        self._settings = self.store.manifest().settings  # another process may have changed its rules and fields
        records.kept_fields = kept_fields(self._settings)
        if not records.splits:
            return None
        embedder, identity = self._active.last, self._active.last.context.identity
        records.count_with(embedder.count_tokens, identity.max_length, identity=identity)
        return records.read_as(reading_of(self._settings))

    def _keep_reading(self, records: Iterable[Record]) -> None:
        """Prepare a reader, and keep its rules for later ones."""
        reading = self.prepare_reader(records)
        if reading is not None and reading != reading_of(self._settings):
            self.store.update_settings({READING: reading.settings()})
            self._settings = self.store.manifest().settings

    def keep_fields(self, records: Iterable[Record]) -> None:
        """Keep the fields that a reader was given, once it has read files of records by them, for later readers.

        `add_records` does so by itself, unless its records are made of the reader's.

        Args:
            records: A RecordReader; other records are passed over.

        Raises:
            StoreError: The store cannot be written.
        """
        if not isinstance(records, RecordReader) or records.fields.described not in records.read_by:
            return
        given = records.fields.settings()
        if given and given != self._settings.get(FIELDS):
            self.store.update_settings({FIELDS: given})
            self._settings = self.store.manifest().settings

    @named_keywords
    def search(
        self,
        query: str,
        k: int = 10,
        *,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[Hit]:
        """Return the `k` best hits for one query.

        While records wait for their vectors (`pending`), "hybrid" makes those of its 200 best hits by words (fewer,
        50 at least, where reading these takes long) within `embed_budget_ms`, and the hits, a `Hits`, say how many were
        not compared.

        A ranking by "hybrid" ends after at most 200 hits, the 100 best of either side, whatever `k` and `offset` are.
        `by="vectors"` ranks all records, and `searcher(candidates=500)` fuses more of them.

        Args:
            query: A text that is not blank.
            k: Maximum number of hits.
            by: "hybrid", "vectors" or "bm25"; see `searcher`.
            where: A filter over the metadata; see `cde_rag.stores.filters`.
            score_threshold: Minimum score of a hit, on the scale of this ranking. By "hybrid" it compares queries, from
                0 (as near as random letters) to 1 (as the collection's own text), if the collection is calibrated;
                a query that finds no more than random letters has no hits then.
            offset: Number of hits to skip: the next page begins at `offset + k`. Pages of an unchanged collection are
                consistent if it is searched exactly; the cost of a page grows with its offset. Pages after the
                end of the ranking are empty.
            rerank: Name of a cross-encoder, loaded once, or a function; see `Searcher.reranked`. Scores, and their
                threshold, are the reranker's.
            rerank_top: Number of hits that are reranked, 50 by default; others are never returned.
            rerank_budget_ms: Milliseconds of reranking, after which hits without a score are left out, but for the
                first `k`.

        Raises:
            ContextMismatchError: The collection was moved to another model, which is not here under its name.
            CorpusError: The query is blank or no valid Unicode.
            FilterError: A filter outside the grammar.
            ModelError: There is no reranker of that name.
            TextIndexError: By BM25, where the store was made without a text index; `store.index_texts` adds it.
            ValueError: `k` or `rerank_top` is below 1, `offset` or `rerank_budget_ms` below 0, `score_threshold` no
                number, `by` no ranking, or there is nothing to rerank with.

        Warns:
            PendingVectorsWarning: `by` is "vectors", and records wait for theirs; once.
            TextIndexWarning: The store has no text index, and `by` is "hybrid": these are the hits by vectors.
            UnknownFieldWarning: There are no hits, and no record has a field that the filter names; once for a field.
        """
        searcher = self._reranking(by, rerank, rerank_top, rerank_budget_ms)
        return searcher.search(query, k, where=where, score_threshold=score_threshold, offset=offset)

    @named_keywords
    def search_batch(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[list[Hit]]:
        """Return the `k` best hits for each query; arguments, errors and warnings are those of `search`."""
        searcher = self._reranking(by, rerank, rerank_top, rerank_budget_ms)
        return searcher.search_batch(queries, k, where=where, score_threshold=score_threshold, offset=offset)

    @named_keywords
    def search_groups(
        self,
        query: str,
        k: int = 10,
        *,
        group_by: str,
        group_size: int = 3,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[Group]:
        """Group hits by a metadata field; see `Searcher.search_groups`, and `search` for `by` and `rerank`."""
        return self._reranking(by, rerank, rerank_top, rerank_budget_ms).search_groups(
            query,
            k,
            group_by=group_by,
            group_size=group_size,
            where=where,
            score_threshold=score_threshold,
            offset=offset,
        )

    @named_keywords
    def search_parents(
        self,
        query: str,
        k: int = 10,
        *,
        group_size: int = 3,
        by: Ranking = "hybrid",
        where: Mapping[str, Any] | None = None,
        score_threshold: float | None = None,
        offset: int = 0,
        rerank: Rerank | str | Path | None = None,
        rerank_top: int | None = None,
        rerank_budget_ms: int | None = None,
    ) -> list[ParentHit]:
        """Return the parents with the best passages; see `Searcher.search_parents`, and `search` for `by`, `rerank`."""
        return self._reranking(by, rerank, rerank_top, rerank_budget_ms).search_parents(
            query, k, group_size=group_size, where=where, score_threshold=score_threshold, offset=offset
        )

    @named_keywords
    def reranked(
        self, rerank: Rerank | str | Path, *, candidates: int = RERANKED, budget_ms: int | None = None
    ) -> Searcher:
        """Return a search whose best hits by "hybrid" are reranked; see `Searcher.reranked`.

        `searcher("vectors").reranked(…)` reranks another ranking.
        """
        return self.searcher().reranked(rerank, candidates=candidates, budget_ms=budget_ms)

    def _reranking(
        self, by: Ranking, rerank: Rerank | str | Path | None, top: int | None, budget_ms: int | None
    ) -> Searcher:
        """Return the search by a ranking, reranked if a reranker is given."""
        if rerank is None:
            if (top, budget_ms) != (None, None):
                raise ValueError("rerank_top and rerank_budget_ms are of rerank=…; give a reranker, or leave them out.")
            return self.searcher(by)
        top = RERANKED if top is None else check_positive(top, "rerank_top")
        if budget_ms is not None:
            budget_ms = check_whole(budget_ms, "rerank_budget_ms", least=0)
        return self.searcher(by).reranked(rerank, candidates=top, budget_ms=budget_ms)

    @named_keywords
    def searcher(
        self,
        by: Ranking = "hybrid",
        *,
        candidates: int = CANDIDATES,
        fusion: Fusion = "convex",
        weight: float | None = None,
        embed_budget_ms: int | None = None,
    ) -> Searcher:
        """Return all searches by one ranking, such as `searcher("bm25").search_batch(queries)`.

        BM25 finds names, codes and rare terms that vectors miss, and needs no model. In languages without spaces
        between words, such as Chinese, it finds complete phrases only.

        Args:
            by: "hybrid", both rankings fused (vectors alone where the store has no text index); "vectors"; or "bm25":
                a record that shares no term with the query is no hit. "words" is another name for "bm25".
            candidates: Hits of either ranking that "hybrid" fuses, at least; there are no others, so at most twice as
                many hits.
            fusion: "convex", the weighted sum of normalised scores, from 0 to 1, or "reciprocal_ranks"; of "hybrid";
                see `cde_rag.search.fusion.fuse`.
            weight: Weight of the vectors in "hybrid", from 0 (BM25 alone) to 1 (vectors alone); by default the one
                that `cde-rag tune` wrote to the collection, else 0.65, and 0.5 for reciprocal ranks.
            embed_budget_ms: In place of the collection's, for "hybrid".

        Raises:
            ValueError: Another ranking or fusion, `candidates` is below 1, the weight is outside [0, 1], the budget
                below 0, or they are given for another ranking.
        """
        ranking = ranking_of(by)
        candidates = check_positive(candidates, "candidates")
        if ranking != "hybrid" and (candidates, fusion, weight, embed_budget_ms) != (CANDIDATES, "convex", None, None):
            given = "candidates, fusion, weight and embed_budget_ms"
            raise ValueError(f"{given} are of by='hybrid', found by={by!r}. Leave them out.")
        if ranking == "vectors":
            return self._searcher
        by_bm25 = BM25Retriever(self.store)
        if ranking == "bm25":
            return self._searcher.with_ranker(by_bm25)
        if weight is None and fusion == "convex":
            weight = self._settings.get(HYBRID_WEIGHT)
        weight = check_fusion(fusion, weight)
        budget = self.embed_budget_ms if embed_budget_ms is None else embed_budget_ms
        budget_s = check_whole(budget, "embed_budget_ms", least=0) / 1000
        ranker = HybridRetriever(self.store, self._active, candidates, fusion, weight, self._on_demand, budget_s)
        return self._searcher.with_ranker(ranker)

    @named_keywords
    def search_diverse(
        self,
        query: str,
        k: int = 10,
        *,
        candidates: int = 50,
        diversity: float = 0.5,
        where: Mapping[str, Any] | None = None,
    ) -> list[Hit]:
        """Search by vectors with maximal marginal relevance: hits near the query and unlike each other.

        The nearest hit comes first.

        Args:
            query: As in `search`, like `k` and `where`.
            k: Maximum number of hits.
            candidates: Number of hits to choose from.
            diversity: From 0 (relevance only, as `search`) to 1 (diversity only).
            where: A filter over the metadata.

        Raises:
            StoreError: Hits were deleted during every attempt.
            ValueError: `k` or `candidates` is below 1, or `diversity` outside [0, 1].
        """
        k, candidates = check_positive(k, "k"), check_positive(candidates, "candidates")

        def search(embedder: Embedder) -> list[Hit]:
            vector = embedder.embed_queries([query])
            space = embedder.fingerprint
            for _ in range(_TRIES):
                (hits,) = self.store.search(vector, max(k, candidates), fingerprint=space, where=where)
                try:
                    near = self.store.vectors([hit.id for hit in hits], fingerprint=space)
                except KeyError:  # one was deleted meanwhile
                    continue
                chosen = marginal_relevance(vector[0], near, k, diversity=diversity)
                return [hits[position] for position in chosen]
            raise StoreError(
                f"Expected hits that stay for one search, found one of them deleted in each of {_TRIES} tries. Search "
                "again, or for fewer candidates."
            )

        return self._searcher.traced(lambda: self._active.use(search), k, where)

    def get(self, ids: Sequence[str]) -> list[Record]:
        """Return the records of those ids that exist, in the order of the ids."""
        ids = check_ids(ids, call="get")
        return [row.record for row in self.store.get(ids)]

    @named_keywords
    def delete(self, ids: Sequence[str] | None = None, *, where: Mapping[str, Any] | None = None) -> int:
        """Delete records by id or by filter, and re-embed those whose siblings changed; return the number deleted.

        Args:
            ids: Unknown ids are skipped.
            where: A filter over the metadata; `{}` matches, and so deletes, every record.

        Raises:
            FilterError: A filter outside the grammar, or one with an empty part that matches every record.
            ValueError: Not exactly one of `ids` and `where`.
        """
        if (ids is None) == (where is None):
            raise ValueError("delete takes either ids or where=…, exactly one of them")
        if ids is not None:
            ids = check_ids(ids, call="delete")
        if where:  # {} itself is meant
            check_narrows(where, "The filter of all records is {}.")
        return self._writer.delete(ids, where)

    @named_keywords
    def count(self, where: Mapping[str, Any] | None = None) -> int:
        """Count the records that match the filter; without one, all records."""
        return self.store.count(where)

    @named_keywords
    def scroll(self, where: Mapping[str, Any] | None = None) -> Iterator[Record]:
        """Yield all records that match the filter, in order of insertion.

        Records may be deleted and added meanwhile.
        """
        return (row.record for row in self.store.scroll(where=where))

    def inspect(self) -> Inspection:
        """Return the collection's metadata: size, model, context and settings."""
        return inspect(self.store)

    @overload
    def recontextualize(
        self,
        *,
        seed: int = 0,
        context_size: int | None = None,
        strategy: Strategy = "random",
        windows: bool | None = None,
        model: "AnyModel | None" = None,
        embedder: Embedder | None = None,
        canary: Canary | None = None,
        grace_s: float = 0.0,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[False] = False,
    ) -> Recontextualization: ...

    @overload
    def recontextualize(
        self,
        *,
        seed: int = 0,
        context_size: int | None = None,
        strategy: Strategy = "random",
        windows: bool | None = None,
        model: "AnyModel | None" = None,
        embedder: Embedder | None = None,
        canary: Canary | None = None,
        grace_s: float = 0.0,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: Literal[True],
    ) -> Estimate: ...

    @named_keywords
    def recontextualize(
        self,
        *,
        seed: int = 0,
        context_size: int | None = None,
        strategy: Strategy = "random",
        windows: bool | None = None,
        model: "AnyModel | None" = None,
        embedder: Embedder | None = None,
        canary: Canary | None = None,
        grace_s: float = 0.0,
        embed: When = "first",
        on_progress: Callable[[Progress], None] | None = None,
        dry_run: bool = False,
    ) -> Recontextualization | Estimate:
        """Sample a new Context from the collection's own documents, re-embed all of them, and switch.

        Readers and writers, in this process or others, use the old generation until the switch and follow it by
        themselves. After a crash at any instant the old one is active, and the same call resumes the run, with its
        Context. The previous generation stays, for `rollback`; those before it are dropped, and an inactive one in the
        same context is made again. If the sample is that of the active generation, such as for a collection with no
        more documents than a context, there is nothing to do: the report has 0 embedded and the old generation.

        Args:
            seed: Random seed of the sample.
            context_size: Number of documents in the context; as many as the model expects, or 512, by default.
            strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
            windows: Read texts longer than the model's window in windows (True), or cut them (False); by default as the
                collection does now.
            model: Another model, its name or folder, or an embedder of it, which keeps its batch size; its vectors must
                be as long as the collection's. Readers follow the switch if they find the model under its name; others
                have to open the collection again.
            embedder: An embedder to move to without sampling: a PlainEmbedder, or one of an existing Context. For
                readers like `model`.
            canary: Queries that must still find their documents by vectors; run when all is embedded, before the
                switch.
            grace_s: Minimum seconds since the start of the run before generations older than the previous one are
                dropped; queries in flight do not need it, but other readers of a Qdrant collection may.
            embed: "first": make the vectors of all records before the switch, also of those that wait for theirs;
                "later": records that wait go on waiting, in the new context.
            on_progress: Called after each write, every few seconds, and while the sample is read. An exception that it
                raises ends the run. Records that arrive at the end of the run are embedded while writers wait.
            dry_run: True: estimate the cost, and the gain of a new Context of the same model as `drift` does, from
                samples; an Estimate. Changes nothing, and refuses what the run refuses before it begins. The time is
                measured with the embedder that is given, or else with the present one, also where another `model` is
                named.

        Raises:
            CanaryError: The new context fails too many canary queries, and is not activated; the same call without a
                canary switches to it.
            ContextError: The model expects another number of context documents.
            CorpusError: The collection is empty, so that there is nothing to sample; a canary's query has no document
                in it; or the new model refuses records that have vectors, with an id: all others have their new ones,
                and the same call goes on. Those that wait for their vectors go on waiting, with a warning.
            ModelError: The collection has a parent key and the new model reads no siblings; or the collection's own
                model is plain, and none is given that reads a context.
            StoreError: Another run is in progress, the store cannot be written, or the new vectors would have another
                length.
            TypeError: An embedder is given together with a model, a context size or windows; or windows with a plain
                model.
            ValueError: Another strategy or value of `embed`, `context_size` is below 1, or `grace_s` below 0 or not
                finite.
        """
        wanted = Wanted(
            seed=seed,
            context_size=context_size,
            strategy=strategy,
            windows=windows,
            model=model,
            embedder=embedder,
            canary=canary,
            grace_s=grace_s,
            later=_is_later(embed),
        )
        moved = self.store, self._active, self.parent_key, wanted
        if dry_run:
            return recontextualization.dry_run(*moved)
        done = recontextualization.recontextualize(*moved, on_progress)
        self._calibrated(done.documents, done.fingerprint)
        return done

    def rollback(self, *, on_progress: Callable[[Progress], None] | None = None) -> Recontextualization:
        """Return to the Context before the last `recontextualize`; repeat the call to resume if interrupted.

        Records added since are embedded in it first; `recontextualize` with the same arguments switches forward again.

        Raises:
            ContextMismatchError: It was made by another model, which cannot be found under its name.
            CorpusError: Its model refuses records that have vectors, with an id; as of `recontextualize`.
            StoreError: There is none, or another run is in progress.
        """
        done = roll_back(self.store, self.embedder, self.parent_key, on_progress)
        self._calibrated(done.documents, done.fingerprint)
        return done

    @named_keywords
    def drift(
        self, *, seed: int = 0, context_size: int | None = None, strategy: Strategy = "random", probes: int = PROBES
    ) -> Drift:
        """Estimate the gain of `recontextualize` with the same arguments; changes nothing.

        Args:
            seed: Random seed of the new context's sample, and of the probes'.
            context_size: Number of documents in the new context; as many as the model expects, or 512, by default.
            strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
            probes: Number of documents to measure it on; seven times as many texts are embedded.

        Raises:
            ContextError: The model expects another number of context documents, or has no null context.
            ModelError: The collection's model is plain and reads no context.
            StoreError: The collection is empty.
        """
        return measure_drift(
            self.store,
            self.embedder,
            self.parent_key,
            seed=seed,
            context_size=context_size,
            strategy=strategy,
            probes=probes,
        )

    def backup(self, folder: str | Path) -> Backup:
        """Back the collection up to a new folder; it may be searched and written meanwhile.

        `Collection.restore` restores it.

        Args:
            folder: Folder of the backup; must not exist yet.

        Raises:
            ContextMismatchError: The collection was moved to another context meanwhile, and its store has no copy.
            StoreError: `folder` exists, cannot be written, or is inside a collection's.
            StoreFormatError: The collection is damaged.
        """
        return back_up(self.store, folder)

    def export(self, path: str | Path, *, on_progress: Callable[[Progress], None] | None = None) -> Transfer:
        """Write records, vectors, Context and settings to a new Parquet file.

        `Collection.import_` reads it into a store of any kind.

        Args:
            path: Path of the file; missing folders are made.
            on_progress: Called after each row group.

        Raises:
            ContextMismatchError: The collection was moved to another context meanwhile.
            StoreError: The file exists or cannot be written, its folder is a collection's, or its suffix is that of
                another format than Parquet.
        """
        return export_collection(self.store, path, on_progress=on_progress)

    def verify(self, *, sample: int | None = None) -> list[Damage]:
        """Read everything and compare it with its checksums; an empty list means that nothing is damaged.

        No model runs; see `audit`.

        Args:
            sample: Deprecated; `audit(sample=…)` embeds records again.

        Raises:
            StoreError: There is no collection in the store.
        """
        damages = verify(self.store)
        if sample is not None:
            warn_of_old_name("verify(sample=…)", "audit(sample=…)")
            if sample and not damages and self.store.count():
                audit = self.audit(sample=sample)
                return [Damage("vectors", audit.advice)] if audit.others else []
        return damages

    @named_keywords
    def audit(self, *, sample: int = SAMPLE, seed: int = 0) -> Audit:
        """Embed a sample of the records again, each with its siblings, and compare with the stored vectors.

        Shows whether the vectors are those of the active Context, which checksums cannot. Plain vectors that are kept
        are not used: the model, or a user's function, embeds every text of the sample and its siblings.

        Args:
            sample: Maximum number of records.
            seed: Random seed of the sample.

        Raises:
            CorpusError: The collection is empty.
            ModelError: A user's function gives other vectors of the fixed texts than before.
            StoreError: There is no collection in the store.
            ValueError: `sample` is below 1.
        """
        return self._active.use(
            lambda embedder: audit_collection(self.store, embedder, self.parent_key, sample=sample, seed=seed)
        )

    def plan(self, records: Iterable[Record]) -> AddPlan:
        """Deprecated: `add_records(records, dry_run=True)`."""
        warn_of_old_name("collection.plan(records)", "collection.add_records(records, dry_run=True)")
        return self.add_records(records, dry_run=True)

    def __repr__(self) -> str:
        return f"Collection({self.store!r}, {self._active.last!r})"

    def __len__(self) -> int:
        return self.store.count()

    def __bool__(self) -> bool:
        return True  # a collection that is empty is one, too, and the question reads no store

    if not TYPE_CHECKING:  # a checker knows the names, and reports the others

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute(self, name, _MEANT)

    def close(self) -> None:
        """Release the store's files, locks and connections; later calls reopen them."""
        self.store.close()

    def __enter__(self) -> "Collection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan_records(collection: Collection, records: Iterable[Record]) -> AddPlan:
    """Deprecated: `collection.add_records(records, dry_run=True)`."""
    warn_of_old_name("plan_records(collection, records)", "collection.add_records(records, dry_run=True)")
    return collection.add_records(records, dry_run=True)


def _is_later(embed: str) -> bool:
    if embed not in ("first", "later"):
        raise ValueError(f"embed={embed!r}: expected 'first' or 'later'. Leave it out to embed first.")
    return embed == "later"


def _documents_of(records: Iterable[Record], store: Store) -> Mapping[str, int] | None:
    """Return the documents that records are read from; None if they are no passages of documents."""
    if isinstance(records, RecordReader):
        if records.splits or records.row_files:
            locate(records, store)
        return records.documents if records.splits else None
    return records.documents if isinstance(records, DocumentRecords) else None


def _prepared(records: Iterable[Record], settings: Mapping[str, Any], embedder: Embedder) -> Iterable[Record]:
    """Return records with the tenant's name, and the complete ones with the headers, of a collection."""
    return with_headers(stamped(records, settings), settings, embedder)


def _new_store(place: Store | str | Path | None) -> Store:
    """Return a store that holds no collection yet; of None a temporary folder."""
    store = temporary_store() if place is None else _store_at(place)
    if store.exists():
        raise StoreError(f"Expected no collection, found one in {store}. Add to it: Collection.open(…).add(texts).")
    return store


def _store_at(place: Store | str | Path) -> Store:
    """Return the store itself, or that of a folder's path or an address."""
    if isinstance(place, str | Path):
        return store_at(place)
    if not isinstance(place, Store):  # pyright: ignore[reportUnnecessaryIsInstance] -- users without types
        over = " A store of another kind is a cde_rag.stores.store.Store over an engine."
        hint = over if hasattr(place, "add") else ""
        raise TypeError(
            'Expected a store, such as QdrantStore(client, "papers"), a folder or an address, found '
            f"{place!r:.80}.{hint}"
        )
    return place
