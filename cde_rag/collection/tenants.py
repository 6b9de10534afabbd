"""Multitenancy: one collection per tenant of an application, with nothing shared between them."""

from contextlib import closing
from typing import Final

from cde_rag.collection.collection import Collection
from cde_rag.collection.info import Inspection, inspect
from cde_rag.collection.settings import create_in, settings_of
from cde_rag.embedders.active import ActiveEmbedder, bound, loaded, stored_context
from cde_rag.embedders.contextual import AnyModel
from cde_rag.embedders.protocol import Embedder, EmbedderOptions
from cde_rag.errors import TenantError, warn_of_old_name
from cde_rag.records import check_key
from cde_rag.stores.base import ProcessBound
from cde_rag.stores.store import Store
from cde_rag.stores.tenant_names import place_key
from cde_rag.stores.tenant_stores import TenantStores

OUTGROWN: Final = 512  # documents of which a context of a tenant's own is sampled: as many as contexts have by default


class Tenants(ProcessBound):
    """One collection per tenant, each in a store of its own, with its own Context, fingerprint and generations.

    No call reaches the texts of two tenants: search and write on the collection of one, `tenants.get("acme")`. A
    tenant starts in the common Context of all, whose texts the owner chose; `tenants.get("acme").recontextualize()`
    samples one from its own documents. Thread-safe.

    Args:
        stores: Stores with tenants; see `create` and `open`.
        embedder: Embedder of their common Context.

    Raises:
        ContextMismatchError: The embedder is of another vector space.
        StoreError: There are no tenants in the stores.
    """

    def __init__(self, stores: TenantStores, embedder: Embedder) -> None:
        self._stores = stores
        self._common = _common(stores)
        self.common_embedder = ActiveEmbedder(self._common, embedder).last

    @classmethod
    def create(
        cls, stores: TenantStores, embedder: Embedder, *, tenant_key: str = "tenant", parent_key: str | None = None
    ) -> "Tenants":
        """Make a place for tenants.

        Args:
            stores: FolderTenants or QdrantTenants, with nothing there yet.
            embedder: In the Context in which every tenant begins and a small one stays. Its texts shape all tenants'
                vectors: let them be nobody's secret, or `Context.null(model)`.
            tenant_key: The metadata field that names the tenant in each record, and in each hit.
            parent_key: As in `Collection.create`, for all tenants.

        Raises:
            StoreError: There is a store already, or the place is not writable.
            ValueError: A key that is empty or one of and, or, not, or both are the same.
        """
        check_key(tenant_key, "tenant_key")
        if tenant_key == parent_key:
            raise ValueError(f"tenant_key and parent_key have to be two fields, found {tenant_key!r} for both.")
        create_in(stores.common(), embedder, {"tenant_key": tenant_key, **settings_of(embedder, parent_key)})
        return cls(stores, embedder)

    @classmethod
    def open(
        cls,
        stores: TenantStores,
        *,
        model: "AnyModel | None" = None,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> "Tenants":
        """Open existing tenants; arguments and errors are those of `Collection.open`."""
        context = stored_context(_common(stores))
        return cls(stores, loaded(context, model=model, options=options))

    def add(self, name: str) -> Collection:
        """Make an empty collection for a new tenant.

        Args:
            name: Any text; names that differ in anything, such as case, are different tenants.

        Raises:
            StoreError: The place is not writable.
            TenantError: There is one of that name, or it cannot be a name.
        """
        store = self._stores.of(place_key(name))
        if store.exists():
            raise TenantError(f"Expected a new tenant, found that there is {name!r:.80}. Open it: tenants.get(…).")
        shared = {"tenant": name, "common_context": self.common_embedder.fingerprint}
        create_in(store, self.common_embedder, {**self._common.manifest().settings, **shared})
        return Collection(store, self.common_embedder)

    def get(self, name: str) -> Collection:
        """Open the collection of one tenant; close it when it is not needed.

        Raises:
            ContextMismatchError: It was moved to another model, which cannot be found under its name.
            TenantError: There is none of that name.
        """
        store = self._store(name)
        begins = store.manifest().fingerprint == self.common_embedder.fingerprint
        return Collection(store, self.common_embedder if begins else bound(store, self.common_embedder))

    def drop(self, name: str) -> None:
        """Remove a tenant's collection: documents, vectors and contexts. Close it everywhere before.

        Raises:
            StoreError: The place is not writable.
            TenantError: There is none of that name.
        """
        self._store(name).close()
        self._stores.remove(place_key(name))

    def names(self) -> list[str]:
        """Return the names of all tenants, sorted."""
        found: list[str] = []
        for key in self._stores.listed():
            with closing(self._stores.of(key)) as store:
                found.append(store.manifest().settings["tenant"])
        return sorted(found)

    def inspect(self) -> dict[str, Inspection]:
        """Return the metadata of each tenant's collection, by name."""
        found: dict[str, Inspection] = {}
        for name in self.names():
            with closing(self._store(name)) as store:
                found[name] = inspect(store)
        return found

    def outgrown(self, documents: int = OUTGROWN) -> list[str]:
        """Return tenants in the common Context with `documents` documents or more: enough for one of their own."""
        found = self.inspect().items()
        return [name for name, one in found if one.common_context and one.documents >= documents]

    def close(self) -> None:
        """Release the store in common; collections of tenants are closed by themselves."""
        self._common.close()

    def __enter__(self) -> "Tenants":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_tenant(self, name: str) -> Collection:
        """Deprecated: `add`."""
        warn_of_old_name("Tenants.create_tenant(name)", "tenants.add(name)")
        return self.add(name)

    def tenant(self, name: str) -> Collection:
        """Deprecated: `get`."""
        warn_of_old_name("Tenants.tenant(name)", "tenants.get(name)")
        return self.get(name)

    def drop_tenant(self, name: str) -> None:
        """Deprecated: `drop`."""
        warn_of_old_name("Tenants.drop_tenant(name)", "tenants.drop(name)")
        self.drop(name)

    def grown(self, documents: int = OUTGROWN) -> list[str]:
        """Deprecated: `outgrown`."""
        warn_of_old_name("Tenants.grown()", "tenants.outgrown()")
        return self.outgrown(documents)

    def _store(self, name: str) -> Store:
        store = self._stores.of(place_key(name))
        if not store.exists():
            raise TenantError(f"Expected a tenant, found none of the name {name!r:.80}. Make it with tenants.add(…).")
        found = store.manifest().settings.get("tenant")
        if found != name:
            raise TenantError(f"Expected the store of tenant {name!r:.80}, found one that was put in its place.")
        return store


def _common(stores: TenantStores) -> Store:
    """Return the tenants' common store."""
    store = stores.common()
    settings = store.manifest().settings
    if "tenant_key" not in settings or "tenant" in settings:
        raise TenantError("Expected a place of tenants, found a collection without them: Collection.open(…).")
    return store
