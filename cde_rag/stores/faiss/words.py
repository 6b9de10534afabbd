"""Full-text index of all records: a contentless FTS5 table of SQLite, searched by BM25.

It holds the terms of the collection's analyzer (`cde_rag.stores.text_analysis`), separated by blanks, and is a part of
every transaction.
Stores made before there was one, or by a SQLite without FTS5, lack it.
"""

import heapq
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from cde_rag.errors import StoreError, TextIndexError
from cde_rag.records import Record
from cde_rag.stores.base import Damage
from cde_rag.stores.filter_sql import Condition
from cde_rag.stores.text_analysis import TextAnalyzer

TABLE: Final = """CREATE VIRTUAL TABLE words USING fts5(stems, content='', tokenize="ascii tokenchars '_'")"""
_WORDS_AT_ONCE: Final = 32  # in one statement; FTS5's time grows with their square
_RECORDS_AT_ONCE: Final = 1000  # whose terms are made before they are written
_AVERAGES: Final = 1  # id in words_data of FTS5's record of how many rows and words there are


class FtsIndex:
    """Full-text index (FTS5 table) of a connection in a transaction; `analyzer` makes its terms."""

    def __init__(self, connection: sqlite3.Connection, analyzer: TextAnalyzer) -> None:
        self._connection = connection
        self._analyzer = analyzer
        self._exists: bool | None = None  # None until it was looked up

    def exists(self) -> bool:
        """Return True if the store has a full-text index."""
        if self._exists is None:
            found = self._connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'words'").fetchone()
            self._exists = found is not None
        return self._exists

    def replace(self, old: Mapping[int, Record], new: Mapping[int, Record]) -> None:
        """Replace the terms of old records by those of new ones, both by position."""
        gone, come = self._terms(old), self._terms(new)
        same = gone.items() & come.items()
        deleted, inserted = sorted(gone.items() - same), sorted(come.items() - same)  # FTS5 is fastest in this order
        self._connection.executemany("INSERT INTO words (words, rowid, stems) VALUES ('delete', ?, ?)", deleted)
        self._connection.executemany("INSERT INTO words (rowid, stems) VALUES (?, ?)", inserted)

    def _terms(self, records: Mapping[int, Record]) -> dict[int, str]:
        """Return the terms of those records that have some, separated by blanks."""
        terms = ((position, self._analyzer.record_terms(record)) for position, record in records.items())
        return {position: " ".join(some) for position, some in terms if some}

    def best(self, query: str, k: int, where: Condition) -> list[tuple[int, float]]:
        """Return positions and scores of the k best records by BM25; equal scores in order of insertion.

        Args:
            query: Text; a repeated term counts repeatedly.
            k: Maximum number of records.
            where: Condition on their positions.

        Raises:
            TextIndexError: There is no full-text index.
        """
        if not self.exists():
            raise TextIndexError(
                "Expected a collection whose words can be searched, found one that was made without. "
                "cde-rag reindex (store.index_texts()) adds them, without embedding; it takes a SQLite with FTS5."
            )
        words = self._analyzer.terms(query)
        if not words:
            return []
        if len(words) <= _WORDS_AT_ONCE:
            return self._matching(words, where, k)
        scores, times = defaultdict[int, float](float), Counter(words)
        for often in sorted(set(times.values())):
            some = [word for word in times if times[word] == often]
            for start in range(0, len(some), _WORDS_AT_ONCE):
                for position, score in self._matching(some[start : start + _WORDS_AT_ONCE], where, -1):
                    scores[position] += often * score
        return heapq.nsmallest(k, scores.items(), key=lambda one: (-one[1], one[0]))

    def _matching(self, words: Sequence[str], where: Condition, limit: int) -> list[tuple[int, float]]:
        """Return matches like `best`; scores of several calls can be added. All matches if `limit` is -1."""
        any_of = " OR ".join(f'"{word}"' for word in words)
        found = self._connection.execute(
            f"""SELECT rowid, -bm25(words) AS score FROM words
            WHERE words MATCH ? AND +rowid IN (SELECT position FROM records WHERE {where.sql})
            ORDER BY score DESC, rowid LIMIT ?""",  # noqa: S608
            (any_of, *where.parameters, min(limit, sys.maxsize)),
        )
        return list(found)

    def rebuild(self) -> None:
        """Rebuild the full-text index from all records.

        Raises:
            StoreError: This SQLite has no FTS5.
        """
        if not has_fts5(self._connection):
            raise StoreError(
                f"Expected SQLite with FTS5 to search words, found {sqlite3.sqlite_version} without it. "
                "Use a Python whose SQLite has FTS5, or search by vectors alone."
            )
        self._connection.execute("DROP TABLE IF EXISTS words")
        self._connection.execute(TABLE)
        self._exists = True
        records = self._records()
        while part := dict(islice(records, _RECORDS_AT_ONCE)):
            self.replace({}, part)

    def optimize(self) -> None:
        """Merge the index into one segment, without terms of deleted records."""
        if self.exists():
            self._connection.execute("INSERT INTO words (words) VALUES ('optimize')")

    def damage(self, where: str) -> Iterator[Damage]:
        """Yield damage if the index does not match the records; `where` is the file in messages."""
        if not self.exists():
            return
        expected, sizes, total = 0, dict[int, bytes](), 0
        for position, record in self._records():
            words = self._analyzer.record_terms(record)
            expected += sum(hash((position, place, word.encode())) for place, word in enumerate(words))
            total += len(words)
            if words:
                sizes[position] = _varint(len(words))
        self._connection.execute("CREATE VIRTUAL TABLE temp.found USING fts5vocab(main, words, 'instance')")
        try:
            found = sum(map(hash, self._connection.execute('SELECT doc, "offset", term FROM temp.found')))
        finally:
            self._connection.execute("DROP TABLE temp.found")
        averages = _varint(len(sizes)) + _varint(total)
        told = self._connection.execute("SELECT block FROM words_data WHERE id = ?", (_AVERAGES,)).fetchone()
        same_sizes = sizes == dict(self._connection.execute("SELECT id, sz FROM words_docsize"))
        if found != expected or not same_sizes or (sizes and told != (averages,)):
            remedy = "cde-rag reindex (store.index_texts()) makes them again."
            yield Damage(f"{where}, words", f"Expected the words of the records, found others. {remedy}")

    def _records(self) -> Iterator[tuple[int, Record]]:
        for position, title, text in self._connection.execute("SELECT position, title, text FROM records"):
            yield position, Record("", decoded(text), decoded(title))


def has_fts5(connection: sqlite3.Connection) -> bool:
    """Return True if this process's SQLite has FTS5."""
    return connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def decoded(text: bytes) -> str:
    """Return text of a store, which need not be UTF-8 if it is damaged."""
    return text.decode(errors="replace")


def _varint(number: int) -> bytes:
    """Encode a number below 2**56 as an SQLite varint: seven bits per byte, the highest first."""
    parts = [number & 0x7F]
    while number := number >> 7:
        parts.append(number & 0x7F | 0x80)
    return bytes(reversed(parts))
