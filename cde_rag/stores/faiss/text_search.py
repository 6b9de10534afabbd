"""The calls of a FAISS store that are about words."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from cde_rag._validation import check_list
from cde_rag.stores.base import Hit
from cde_rag.stores.checks import check_k
from cde_rag.stores.faiss.database import FORMAT, Database, set_format
from cde_rag.stores.faiss.record_tables import Records
from cde_rag.stores.faiss.view import View
from cde_rag.stores.filter_conditions import Filter
from cde_rag.stores.filters import parse
from cde_rag.stores.text_analysis import words_in

Result = TypeVar("Result")


class TextSearch(ABC):
    """Half of a FaissStore."""

    _database: Database

    @abstractmethod
    def _read(self, work: Callable[[View], Result]) -> Result:
        """Do something with one state of the active generation."""

    def search_text(self, queries: Sequence[str], k: int, *, where: Mapping[str, Any] | None = None) -> list[list[Hit]]:
        """See `Store.search_text`."""
        check_list(queries, call="search_text", what="queries")
        condition = None if where is None else parse(where)
        k = check_k(k)
        return self._read(lambda view: [_best(view, query, k, condition) for query in queries])

    def index_texts(self) -> None:
        """See `Store.index_texts`."""
        with self._database.writing() as connection:
            Records(connection, self._database.path).lexicon.rebuild()
            set_format(connection, FORMAT)


def _best(view: View, query: str, k: int, where: Filter | None) -> list[Hit]:
    found = view.records.matching(words_in(query), k, where)
    stored = view.at([position for position, _ in found])
    return [one.row.hit(score) for one, (_, score) in zip(stored, found, strict=True)]
