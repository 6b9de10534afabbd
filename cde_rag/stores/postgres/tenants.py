"""The stores of tenants in PostgreSQL: a schema for each, which a role can be given alone."""

from functools import partial
from typing import ClassVar

from cde_rag.stores.postgres.address import Address
from cde_rag.stores.postgres.index import PgIndexKind, PgQuantization
from cde_rag.stores.postgres.store import PgVectorStore


class _PgTenantStore(PgVectorStore):
    """The store of one tenant, whose tables have row-level security from the start."""

    _restricted: ClassVar = True


class PgTenants:
    """A schema for each tenant, and one in common. Implements `cde_rag.stores.tenant_stores.TenantStores`.

    Tenants share no table. A role with `PgVectorStore.grant_read` on one tenant's schema reads that tenant's records
    and no others, whatever SQL it sends; row-level security shows it none even of a schema that was granted by mistake.

    Args:
        dsn: As for PgVectorStore.
        name: Name of the one in common, and how those of tenants begin: `papers_t_<key>`; at most 28 characters.
        index: As for PgVectorStore.
        quantization: As for PgVectorStore.
    """

    def __init__(
        self,
        dsn: str,
        name: str,
        *,
        index: PgIndexKind | None = None,
        quantization: PgQuantization | None = None,
    ) -> None:
        self._open_common = partial(PgVectorStore, dsn, name, index=index, quantization=quantization)
        self._open = partial(_PgTenantStore, dsn, index=index, quantization=quantization)
        self._common = self._open_common()
        self._prefix = f"{name}_t_"
        self.of("0" * 32)  # refuses a name that is too long for those of tenants

    @classmethod
    def at_address(cls, address: str) -> "PgTenants":
        """Return the stores of tenants at `postgresql://user@host/database/collection`.

        Raises:
            StoreError: The address is another.
        """
        return cls(*Address.parse(address))

    def common(self) -> PgVectorStore:
        """Return the common store."""
        return self._open_common()

    def of(self, key: str) -> _PgTenantStore:
        """Return the store in a tenant's schema, which may not exist yet."""
        return self._open(f"{self._prefix}{key}")

    def listed(self) -> list[str]:
        """Return the keys of existing stores, sorted."""
        return [name.removeprefix(self._prefix) for name in self._common.names(self._prefix)]

    def remove(self, key: str) -> None:
        """Delete a tenant's schema, if it exists."""
        store = self.of(key)
        if store.exists():
            store.remove()
        store.close()
