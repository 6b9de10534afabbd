"""The stores of tenants in Qdrant: a collection for each."""

import re
from functools import partial

from qdrant_client import QdrantClient

from cde_rag.stores.qdrant.calls import call
from cde_rag.stores.qdrant.contexts import CONTEXTS, concrete
from cde_rag.stores.qdrant.store import QdrantStore
from cde_rag.stores.qdrant_base.index import Hnsw
from cde_rag.stores.tenant_stores import KEY


class QdrantTenants:
    """A collection for each tenant, and one in common. Implements `cde_rag.stores.tenant_stores.TenantStores`.

    Args:
        client: As for QdrantStore.
        collection: Name of the one in common, and how those of tenants begin: `papers__cde_tenant_<key>`.
        exact: As for QdrantStore.
        quantization: As for QdrantStore.
        hnsw: As for QdrantStore.
    """

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        *,
        exact: bool = False,
        quantization: str | None = None,
        hnsw: Hnsw | None = None,
    ) -> None:
        self._client = client
        self._collection = collection
        self._store = partial(QdrantStore, client, exact=exact, quantization=quantization, hnsw=hnsw)

    def common(self) -> QdrantStore:
        """Return the common store."""
        return self._store(self._collection)

    def of(self, key: str) -> QdrantStore:
        """Return the store in a tenant's collection, which may not exist yet."""
        return self._store(self._name(key))

    def listed(self) -> list[str]:
        """Return the keys of existing stores, sorted."""
        ours = re.compile(re.escape(self._name("")) + f"({KEY.pattern})")
        collections = call(self._client.get_collections).collections
        found = (ours.fullmatch(collection.name) for collection in collections)
        return sorted(name[1] for name in found if name is not None and self.of(name[1]).exists())

    def remove(self, key: str) -> None:
        """Delete a tenant's collections."""
        name = concrete(self._client, self._name(key))
        for one in (name + CONTEXTS, name):  # the last is what `listed` finds
            if call(lambda one=one: self._client.collection_exists(one)):
                call(lambda one=one: self._client.delete_collection(one))

    def _name(self, key: str) -> str:
        return f"{self._collection}__cde_tenant_{key}"
