"""Prepared training data: pairs as memory-mapped arrays. Loads with NumPy alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float16, Float32, Int64

from cde_rag._files import user_path, write_durably
from cde_rag_training.data.archive import pack, unpacked
from cde_rag_training.data.array_folder import check_files, damaged, manifest_of, open_array, seal, write_array
from cde_rag_training.data.layout import ALL, LEXICAL, LEXICAL_NEGATIVES, check_layout
from cde_rag_training.data.lexical import LexicalPairs
from cde_rag_training.data.tokens import TokenRows

TOKENIZER = "tokenizer.json"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Metadata of the arrays.

    Attributes:
        tokenizer_sha256: Of the tokenizer's JSON.
        max_length: Tokens that texts are cut at, special tokens included.
        source_names: By code.
        domain_names: By code; two sources may have a domain of the same name, which are two codes.
        settings: Settings of the preparation, for people to read; JSON.
    """

    tokenizer_sha256: str
    max_length: int
    source_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Pairs as arrays. A text row is a position in `texts`; codes number names from 0; -1 means "none".

    Attributes:
        folder: Folder of the arrays.
        tokenizer_sha256: Of the tokenizer's JSON.
        max_length: Tokens that texts are cut at, special tokens included.
        source_names: By code.
        domain_names: By code; two sources may have a domain of the same name, which are two codes.
        settings: Settings of the preparation, for people to read; JSON.
        texts: Every distinct text once: queries and documents, also as views show them, titles, hard negatives.
        queries: Text row of each pair's own query.
        documents: Text row of each pair's document.
        titles: Text row of the parent's name, or -1.
        sources: Code of each pair's source.
        domains: Code of each pair's domain; a domain lies in one source.
        parents: Code of each pair's parent, or -1; pairs of one parent stand in the order they were given.
        views: How pairs can be shown: (pair, kind, query's text row, document's text row), sorted by pair; a kind is a
            place in `layout.VIEW_KINDS`. Every pair has "own"; "sentence" shows the document without that sentence.
        hard_negatives: Text rows, filled up with -1; no columns where the data has none.
        query_vectors: Surrogate embeddings as they lie on disk; read them with `query_vectors_of`.
        document_vectors: Likewise.
        clusters: The cluster of each pair at each level, from fine to coarse; a cluster lies in one source.
        lexical: Words and weights for BM25 inside a batch, where they were made.
        passages: Passages of the pairs' corpora, in the order of their parents: text row, domain, parent (or -1). None
            if they were not given; contexts and siblings are then documents of pairs.
        filter_query_vectors: Embeddings of the queries by a surrogate of the filter's own; None: the other one's count.
        filter_document_vectors: Likewise, of the documents.
        negative_rows: Text rows of the hard negatives, each once, ascending; None where the data has none.
        negative_vectors: Their embeddings by the filter's surrogate.
        prefixes: Text rows of each pair's task prefixes, of query and document; -1 for the model's own,
            `layout.NO_PREFIX` for none. None where no pair has one.
        grades: Relevance of each pair's document, 0 … 1; None where all are 1.
    """

    folder: Path
    tokenizer_sha256: str
    max_length: int
    source_names: tuple[str, ...]
    domain_names: tuple[str, ...]
    settings: Mapping[str, Any]
    texts: TokenRows
    queries: Int64[np.ndarray, " pairs"]
    documents: Int64[np.ndarray, " pairs"]
    titles: Int64[np.ndarray, " pairs"]
    sources: Int64[np.ndarray, " pairs"]
    domains: Int64[np.ndarray, " pairs"]
    parents: Int64[np.ndarray, " pairs"]
    views: Int64[np.ndarray, "views 4"]
    hard_negatives: Int64[np.ndarray, "pairs negatives"]
    query_vectors: Float16[np.ndarray, "pairs dim"]
    document_vectors: Float16[np.ndarray, "pairs dim"]
    clusters: Int64[np.ndarray, "pairs levels"]
    lexical: LexicalPairs | None = None
    passages: Int64[np.ndarray, "passages 3"] | None = None
    filter_query_vectors: Float16[np.ndarray, "pairs filter_dim"] | None = None
    filter_document_vectors: Float16[np.ndarray, "pairs filter_dim"] | None = None
    negative_rows: Int64[np.ndarray, " negative_texts"] | None = None
    negative_vectors: Float16[np.ndarray, "negative_texts filter_dim"] | None = None
    prefixes: Int64[np.ndarray, "pairs 2"] | None = None
    grades: Float32[np.ndarray, " pairs"] | None = None

    def __len__(self) -> int:
        return len(self.queries)

    @cached_property
    def tokenizer(self) -> str:
        """The JSON of the tokenizer that made the token ids."""
        return (self.folder / TOKENIZER).read_text(encoding="utf-8")

    def query_vectors_of(self, pairs: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return surrogate embeddings of some pairs' own queries, of unit norm up to 1e-3."""
        return self.query_vectors[pairs].astype(np.float32)

    def document_vectors_of(self, pairs: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return surrogate embeddings of some pairs' complete documents, of unit norm up to 1e-3."""
        return self.document_vectors[pairs].astype(np.float32)

    def filter_vectors_of(
        self, pairs: Int64[np.ndarray, " some"]
    ) -> tuple[Float32[np.ndarray, "some dim"], Float32[np.ndarray, "some dim"]]:
        """Return embeddings of some pairs' queries and documents by the surrogate that the filter uses."""
        queries, documents = self.filter_query_vectors, self.filter_document_vectors
        if queries is None or documents is None:
            return self.query_vectors_of(pairs), self.document_vectors_of(pairs)
        return queries[pairs].astype(np.float32), documents[pairs].astype(np.float32)

    def places_of(
        self, rows: Int64[np.ndarray, " some"]
    ) -> tuple[Int64[np.ndarray, " some"], Bool[np.ndarray, " some"]]:
        """Find texts that are negatives: hard negatives, or documents of pairs.

        Args:
            rows: Text rows.

        Returns:
            The place of each in `negative_rows`, or the position of a pair with that document; and True for the former.

        Raises:
            KeyError: A text that is neither.
        """
        held = np.zeros(0, dtype=np.int64) if self.negative_rows is None else np.asarray(self.negative_rows)
        is_negative = np.isin(rows, held)
        documents, order = self._sorted_documents
        places = np.where(is_negative, np.searchsorted(held, rows), 0)
        found = np.minimum(np.searchsorted(documents, rows), len(documents) - 1)
        if not (is_negative | (documents[found] == rows)).all():
            raise KeyError("Expected text rows of hard negatives with vectors or of documents, found others.")
        return np.where(is_negative, places, order[found]), is_negative

    def negative_vectors_of(self, rows: Int64[np.ndarray, " some"]) -> Float32[np.ndarray, "some dim"]:
        """Return embeddings of hard negatives, or of documents in their place, by the filter's surrogate.

        Raises:
            KeyError: A text that is neither.
        """
        places, is_negative = self.places_of(rows)
        documents = self.filter_document_vectors
        documents = self.document_vectors if documents is None else documents
        vectors = np.zeros((len(rows), documents.shape[1]), dtype=np.float32)
        vectors[~is_negative] = documents[places[~is_negative]]
        if self.negative_vectors is not None:
            vectors[is_negative] = self.negative_vectors[places[is_negative]]
        return vectors

    @cached_property
    def _sorted_documents(self) -> tuple[Int64[np.ndarray, " pairs"], Int64[np.ndarray, " pairs"]]:
        order = np.argsort(self.documents, kind="stable")
        return np.asarray(self.documents)[order], order

    def text(self, row: int | np.integer) -> str:
        """Decode a text for people to read, without special tokens."""
        return self._decoder.decode(self.texts[row])

    @cached_property
    def _decoder(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.tokenizer)

    @classmethod
    def load(cls, path: str | Path) -> "Prepared":
        """Open a prepared folder, or an archive made by `pack`, which is unpacked once next to itself.

        All checksums are verified; arrays stay on disk.

        Raises:
            PreparedError: Not ready, damaged, newer, or arrays that do not belong together.
        """
        path = user_path(path)
        files = {TOKENIZER, *(f"{name}.npy" for name in ALL)}
        folder = unpacked(path, known=files) if path.is_file() else path
        manifest = manifest_of(folder)
        if not set(manifest.files) <= files:
            raise damaged(str(folder), f"a manifest of other files: {sorted(set(manifest.files) - files)}")
        check_files(folder, manifest.files)
        arrays = {name.removesuffix(".npy"): open_array(folder / name) for name in manifest.files if name != TOKENIZER}
        check_layout(arrays, where=str(folder))
        weights = LEXICAL | LEXICAL_NEGATIVES
        lexical = {name.removeprefix("lexical_"): arrays.pop(name) for name in weights if name in arrays}
        return cls(
            folder=folder,
            tokenizer_sha256=manifest.facts["tokenizer_sha256"],
            max_length=manifest.facts["max_length"],
            source_names=tuple(manifest.facts["source_names"]),
            domain_names=tuple(manifest.facts["domain_names"]),
            settings=manifest.facts["settings"],
            texts=TokenRows(arrays.pop("tokens"), arrays.pop("token_starts")),
            lexical=LexicalPairs(**lexical) if lexical else None,
            **arrays,
        )

    @classmethod
    def save(cls, folder: Path, arrays: Mapping[str, np.ndarray], facts: Facts, tokenizer: str) -> "Prepared":
        """Write given arrays, named and shaped as in `layout`, and open them.

        Args:
            folder: Made where it is missing.
            arrays: By name, as for `check_layout`.
            facts: Metadata of the arrays.
            tokenizer: Its JSON.

        Raises:
            PreparedError: Arrays that do not belong together.
        """
        check_layout(arrays, where=str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in arrays.items():
            write_array(folder / f"{name}.npy", array)
        write_durably(folder / TOKENIZER, tokenizer.encode())
        seal(folder, [TOKENIZER, *(f"{name}.npy" for name in arrays)], vars(facts))
        return cls.load(folder)

    def pack(self, path: Path) -> None:
        """Write the complete folder into one compressed file for `load`."""
        pack(self.folder, path)
