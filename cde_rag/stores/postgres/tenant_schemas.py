"""The stores of tenants in PostgreSQL: a schema for each, which a role can be given alone."""

from cde_rag.stores.postgres.address import Address
from cde_rag.stores.postgres.store import PgVectorStore


class PgTenants:
    """A schema for each tenant, and one in common. Implements `cde_rag.stores.tenant_stores.TenantStores`.

    Tenants share no table. A role with `PgVectorStore.grant_read` on one tenant's schema reads that tenant's records
    and no others, whatever SQL it sends.

    Args:
        dsn: As for PgVectorStore.
        name: Name of the one in common, and how those of tenants begin: `papers_t_<key>`; at most 28 characters.
        index: As for PgVectorStore.
        quantization: As for PgVectorStore.
    """

    def __init__(self, dsn: str, name: str, *, index: str | None = None, quantization: str | None = None) -> None:
        self._common = PgVectorStore(dsn, name, index=index, quantization=quantization)
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
        return self._common.named(self._common.name)

    def of(self, key: str) -> PgVectorStore:
        """Return the store in a tenant's schema, which may not exist yet."""
        return self._common.named(f"{self._prefix}{key}")

    def listed(self) -> list[str]:
        """Return the keys of existing stores, sorted."""
        return [name.removeprefix(self._prefix) for name in self._common.names(self._prefix)]

    def remove(self, key: str) -> None:
        """Delete a tenant's schema, if it exists."""
        store = self.of(key)
        if store.exists():
            store.remove()
        store.close()
