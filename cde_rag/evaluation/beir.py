"""Retrieval sets in the layout of BEIR.

A folder holds `corpus.jsonl` (`_id`, `text`, optional `title` and `parent`) and `queries.jsonl` (`_id`, `text`), each
plain or as `.jsonl.gz`, and for each split one `qrels/<split>.tsv` (query id, corpus id, grade; a header line). Where a
split has queries of its own, they lie in `queries_<split>.jsonl`.

Source: Thakur et al. (2021), BEIR.
"""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from jaxtyping import Int64

from cde_rag._files import given_path, user_path
from cde_rag._validation import unique_keys
from cde_rag.errors import CorpusError
from cde_rag.readers.decoding import as_utf8
from cde_rag.readers.splitting import split


@dataclass(frozen=True)
class Corpus:
    """The documents of a retrieval set.

    Attributes:
        name: Name of the folder.
        ids: Ids of the documents; passages split from one document share its id.
        texts: Texts to embed: title and text. None is blank.
        parents: Parent of each document or None, None if none has one; a parent's documents are in its order.
        blank: Number of documents left out since they have neither title nor text.
    """

    name: str
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    parents: tuple[str | None, ...] | None = None
    blank: int = 0


class JudgedQueries(NamedTuple):
    """Queries with a text and at least one relevant document.

    Attributes:
        ids: Unique.
        queries: Their texts.
        judgments: For each query the grades of its relevant documents, all above zero.
        blank: Number of judged queries left out, since their text is blank.
    """

    ids: tuple[str, ...]
    queries: tuple[str, ...]
    judgments: tuple[Mapping[str, int], ...]
    blank: int


@dataclass(frozen=True)
class RetrievalSet:
    """A corpus, queries, and which documents are relevant to them.

    Attributes:
        corpus: The documents.
        query_ids: Unique.
        queries: Those with at least one relevant document.
        judgments: For each query the grades of its relevant documents, all above zero.
        blank_queries: Number of judged queries left out, since their text is blank.
    """

    corpus: Corpus
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    judgments: tuple[Mapping[str, int], ...]
    blank_queries: int = 0

    @property
    def blocks(self) -> Int64[np.ndarray, " queries"]:
        """Block number of each query; see `query_blocks`."""
        return query_blocks(self.judgments)

    def select(self, positions: Sequence[int]) -> "RetrievalSet":
        """Return the same corpus with the queries at these positions."""
        return RetrievalSet(
            self.corpus,
            tuple(self.query_ids[i] for i in positions),
            tuple(self.queries[i] for i in positions),
            tuple(self.judgments[i] for i in positions),
            self.blank_queries,
        )

    def sample_queries(self, limit: int, *, seed: int = 0) -> "RetrievalSet":
        """Return the same corpus with at most `limit` queries, in order.

        Keeps those with the lowest sha256 of `<seed>:<query id>`, so that the choice does not depend on the order, and
        a smaller sample is part of a larger one.
        """
        hashes = [sha256(f"{seed}:{query}".encode()).digest() for query in self.query_ids]
        lowest = sorted(range(len(hashes)), key=hashes.__getitem__)[:limit]
        return self.select(sorted(lowest))


def read_beir(
    folder: str | Path, *, split: str = "test", parent_key: str | None = None, max_characters: int | None = None
) -> RetrievalSet:
    """Read a retrieval set in BEIR's layout.

    Blank queries are left out and counted. Documents that the judgments name and the corpus lacks count as never found,
    as in BEIR, and so does a document that has its query's id.

    Args:
        folder: In the layout above.
        split: Name of the judgments' file.
        parent_key: As for `read_corpus`.
        max_characters: As for `read_corpus`.

    Raises:
        CorpusError: A file or split is missing, unreadable or empty, or a line is invalid.
    """
    folder = given_path(folder, "The folder of a retrieval set", CorpusError)
    corpus = read_corpus(folder, parent_key=parent_key, max_characters=max_characters)
    ids, queries, judgments, blank = read_judged_queries(folder, split=split)
    known = set(corpus.ids)
    found = {
        (query, document)
        for query, judged in zip(ids, judgments, strict=True)
        for document in judged
        if document in known
    }
    if all(query == document for query, document in found):
        only = "only such as have their query's id, which count as the query; name one of them otherwise"
        raise CorpusError(
            f"{folder}: expected documents of qrels/{split}.tsv in the corpus, found "
            f"{only if found else 'none of them there'}."
        )
    return RetrievalSet(corpus, ids, queries, judgments, blank)


def read_judged_queries(folder: str | Path, *, split: str = "test") -> JudgedQueries:
    """Read the queries and judgments of a retrieval set, without its documents.

    Args:
        folder: In the layout above.
        split: Name of the judgments' file.

    Raises:
        CorpusError: As `read_beir`.
    """
    folder = user_path(folder)
    queries = _read_queries(folder, split)
    judgments = _read_judgments(folder, split)
    if (lost := next((query for query in judgments if query not in queries), None)) is not None:
        raise CorpusError(
            f"{folder}: expected the queries of qrels/{split}.tsv, found no query {lost!r}. Is it another split's?"
        )
    judged = [query for query in queries if query in judgments]
    ids = tuple(query for query in judged if queries[query].strip())
    if not ids:
        raise CorpusError(f"{folder}: expected queries with a text, found {len(judged)} judged, all blank.")
    return JudgedQueries(
        ids,
        tuple(queries[query] for query in ids),
        tuple(judgments[query] for query in ids),
        len(judged) - len(ids),
    )


def query_blocks(judgments: Sequence[Mapping[str, int]]) -> Int64[np.ndarray, " queries"]:
    """Return a block number for each query; queries with the same best document (highest grade, lowest id) share one.

    Results on queries of one block are not independent.
    """
    best = [min(judged, key=lambda document: (-judged[document], document)) for judged in judgments]
    return np.unique(np.array(best, dtype=object), return_inverse=True)[1]


def read_corpus(folder: str | Path, *, parent_key: str | None = None, max_characters: int | None = None) -> Corpus:
    """Read the documents of a retrieval set.

    Args:
        folder: In the layout above.
        parent_key: Field that names the longer document a row was cut from; dots reach into objects, as in
            `metadata.doc_id`. `"title"` makes the title the parent and leaves it out of the text. By default the field
            `parent`, where rows have one.
        max_characters: Longer texts are split into passages, each with the document's title in front; a document
            without a parent is then the parent of its passages.

    Raises:
        CorpusError: As `read_beir`.
        MissingExtraError: The splitter is not installed.
    """
    folder = user_path(folder)
    if not folder.is_dir():
        raise CorpusError(f"{folder}: expected a folder with corpus.jsonl, queries.jsonl and qrels/, found no folder.")
    split = _splitter(max_characters)
    ids: list[str] = []
    texts: list[str] = []
    parents: list[str | None] = []
    lines: dict[str, str] = {}  # by id
    named = False
    for where, row in _rows(_existing(folder, "corpus.jsonl")):
        document = _identifier(row, where)
        if document in lines:
            raise CorpusError(f"{where}: expected unique ids, found {document!r} again, after {lines[document]}.")
        lines[document] = where
        title = "" if parent_key == "title" else _string(row, "title", where, default="")
        text = _string(row, "text", where)
        parent = _parent(row, "parent" if parent_key is None else parent_key, where)
        passages = split(text) or [text]  # none of a blank text, which may have a title
        for passage in passages if (title + text).strip() else []:
            ids.append(document)
            texts.append(f"{title} {passage}" if title else passage)
            parents.append(document if parent is None and len(passages) > 1 else parent)
        named = named or parent is not None
    if not texts:
        raise CorpusError(f"{folder}: expected documents in corpus.jsonl, found none that has a text.")
    if parent_key is not None and not named:
        raise CorpusError(f"{folder}: expected parents in the field {parent_key!r}, found none. Name another field.")
    return Corpus(
        name=folder.resolve().name,
        ids=tuple(ids),
        texts=tuple(texts),
        parents=tuple(parents) if any(parents) else None,
        blank=len(lines) - len(set(ids)),
    )


def _splitter(max_characters: int | None) -> Callable[[str], list[str]]:
    """Return a function that splits a text at paragraphs and sentences, or not at all."""
    if max_characters is None:
        return lambda text: [text]
    if max_characters < 1:
        raise ValueError(f"max_characters must be at least 1, not {max_characters}")
    return lambda text: [text[begin:end] for begin, end in split(text, max_characters)]


def _read_queries(folder: Path, split: str) -> dict[str, str]:
    """Query id → text; the split's own queries where it has some."""
    own = f"queries_{split}.jsonl"
    queries: dict[str, str] = {}
    for where, row in _rows(_existing(folder, own if _plain_or_gzip(folder, own) else "queries.jsonl")):
        identifier, text = _identifier(row, where), _string(row, "text", where)
        if identifier in queries:
            raise CorpusError(f"{where}: expected unique ids, found {identifier!r} again.")
        queries[identifier] = text
    return queries


def _read_judgments(folder: Path, split: str) -> dict[str, dict[str, int]]:
    """Query id → grades above zero by document id; only queries that have one."""
    path = folder / "qrels" / f"{split}.tsv"
    if not path.is_file():
        found = ", ".join(sorted(other.stem for other in path.parent.glob("*.tsv"))) or "none"
        raise CorpusError(f"{folder}: expected the split {split!r} in qrels/{split}.tsv, found the splits: {found}.")
    judgments: dict[str, dict[str, int]] = {}
    for place, (where, line) in enumerate(_lines(path)):
        fields = line.split("\t")
        if place == 0 and not _is_integer(fields[-1]):
            continue  # the header
        if len(fields) != 3 or not _is_integer(fields[2]):
            raise CorpusError(f"{where}: expected query id, corpus id and integer grade between tabs, found {line!r}.")
        query, document, grade = fields[0], fields[1], int(fields[2])
        if grade > 0:
            judgments.setdefault(query, {})[document] = grade
    if not judgments:
        raise CorpusError(f"{path}: expected a query with a relevant document (grade above 0), found none.")
    return judgments


def _plain_or_gzip(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _existing(folder: Path, name: str) -> Path:
    path = _plain_or_gzip(folder, name)
    if path is None:
        other = ", or Markdown files" if name == "corpus.jsonl" else ""
        raise CorpusError(f"{folder}: expected {name} or {name}.gz as in BEIR's layout{other}, found neither.")
    return path


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each line's location, for messages, and the line without its end; blank lines are skipped."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for line in as_utf8(file):
                number += 1
                if line.strip():
                    yield f"{path}, line {number}", line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}, line {number}: expected UTF-8, found something else ({error}).") from error
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: expected a readable file, stopped after line {number} ({error}).") from error


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each line's location, for messages, and its JSON object."""
    for where, line in _lines(path):
        try:
            row = json.loads(line, object_pairs_hook=unique_keys)
        except ValueError as error:
            raise CorpusError(f"{where}: expected a JSON object, found {line[:40]!r} ({error}).") from error
        if not isinstance(row, dict):
            raise CorpusError(f"{where}: expected a JSON object, found {line[:40]!r}.")
        yield where, cast("dict[str, Any]", row)


def _string(row: Mapping[str, Any], key: str, where: str, *, default: str | None = None) -> str:
    value = default if row.get(key) is None else row[key]
    if not isinstance(value, str):
        raise CorpusError(f"{where}: expected a string in {key!r}, found {value!r}.")
    return value


def _identifier(row: Mapping[str, Any], where: str) -> str:
    """Return the id of a row: a string that is not empty, or a whole number as a string."""
    value = row.get("_id")
    if type(value) not in (str, int) or value == "":
        raise CorpusError(f"{where}: expected an id in '_id', found {value!r}.")
    return str(value)


def _parent(row: Mapping[str, Any], key: str, where: str) -> str | None:
    """Return the string or whole number at a dotted key; None if it is missing, null or empty."""
    value: Any = row
    for step in key.split("."):
        value = cast("dict[str, Any]", value).get(step) if isinstance(value, dict) else None
    if value is None or value == "":
        return None
    if type(value) not in (str, int):
        raise CorpusError(f"{where}: expected a string or whole number in {key!r}, found {value!r}.")
    return str(value)


def _is_integer(field: str) -> bool:
    try:
        int(field)
    except ValueError:
        return False
    return True
