"""Indexes over payloads, for the order of insertion and for filters."""

from collections.abc import Set as AbstractSet
from typing import Final

from qdrant_client import QdrantClient, models

from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant_base.payload import ORDER
from cde_rag.stores.qdrant_base.payload_fields import NUMBERS, TOKENS
from cde_rag.stores.qdrant_base.points import MOST_INDEXED

_ALWAYS: Final = {ORDER: models.PayloadSchemaType.INTEGER, TOKENS: models.PayloadSchemaType.KEYWORD}
_NUMBERS: Final = models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=False, range=True)


class PayloadIndexes:
    """The indexes of one collection.

    Args:
        client: Client of a server, or in local mode.
        collection: Its name.
        settled: Keys of numbers that need no further index; those that come to be so are added.
        local: True if the client is in local mode, which has no indexes.
    """

    def __init__(self, client: QdrantClient, collection: str, settled: set[str], *, local: bool) -> None:
        self._client = client
        self._collection = collection
        self._settled = settled
        self._local = local

    def create(self) -> None:
        """Make those that order and filters need in any case."""
        for key, schema in () if self._local else _ALWAYS.items():
            self._create(key, schema)

    def add_numbers(self, keys: AbstractSet[str]) -> None:
        """Create indexes for ranges over these payload keys, up to `MOST_INDEXED` in total."""
        if self._local or keys <= self._settled:
            return
        there = self._numbers()
        for key in sorted(keys - there - self._settled)[: max(0, MOST_INDEXED - len(there))]:
            self._create(key, _NUMBERS)
        self._settled.update(there, keys)  # those that are too many are not asked for again

    def delete(self) -> None:
        """Remove all of them; nothing where they are not."""
        for key in () if self._local else (*_ALWAYS, *sorted(self._numbers())):
            call(lambda key=key: self._client.delete_payload_index(self._collection, key, wait=True))

    def _numbers(self) -> set[str]:
        schema = call(lambda: self._client.get_collection(self._collection)).payload_schema
        return {key for key in schema if key.startswith(f"{NUMBERS}.")}

    def _create(self, key: str, schema: models.PayloadSchemaType | models.IntegerIndexParams) -> None:
        call(lambda: self._client.create_payload_index(self._collection, key, schema, wait=True))
