"""PgVectorStore against a real server."""

import functools
import itertools
from collections.abc import Callable

import pytest
from contract import Opener, StoreContract
from word_scores import table_scores

from cde_rag.stores.postgres import PgVectorStore

NAMES = itertools.count()


def name() -> str:
    return f"papers_{next(NAMES)}"


class TestPgVector(StoreContract):
    word_scores = staticmethod(table_scores)

    @pytest.fixture
    def new_place(self, postgres: str) -> Callable[[], Opener]:
        return lambda: functools.partial(PgVectorStore, postgres, name())
