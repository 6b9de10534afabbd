"""Names of tenants, their keys in file names, and their stamps in records."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from cde_rag.errors import TenantError
from cde_rag.field_names import key_of, value_at
from cde_rag.records import Record

LONGEST_NAME: Final = 1024  # characters
_HEX: Final = 32  # 128 bits


def _check_name(name: str) -> str:
    """Validate and return the name of a tenant; names that differ in anything, such as case, are different."""
    if not isinstance(cast(object, name), str):
        raise TenantError(f"Expected the name of a tenant, a str; found {type(name).__name__}.")
    if not name.strip() or len(name) > LONGEST_NAME:
        raise TenantError(f"Expected the name of a tenant, of 1 to {LONGEST_NAME} characters; found {name!r:.80}.")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise TenantError(f"Expected the name of a tenant in valid Unicode, found {name!a:.80}.") from error
    return name


def place_key(name: str) -> str:
    """Return a tenant's key for names of files and collections: 32 hex digits of a hash of the name.

    Raises:
        TenantError: The name is invalid.
    """
    return hashlib.sha256(_check_name(name).encode()).hexdigest()[:_HEX]


def is_common(settings: Mapping[str, Any]) -> bool:
    """Return True if settings are those of the tenants' common store."""
    return "tenant_key" in settings and "tenant" not in settings


def check_is_of(settings: Mapping[str, Any], name: str) -> None:
    """Refuse settings of a collection that does not belong to a tenant.

    Args:
        settings: Settings of a store, an export or a backup.
        name: Name of the tenant.

    Raises:
        TenantError: It is another tenant's collection, or one without a tenant.
    """
    found = settings.get("tenant")
    if found != _check_name(name):
        whose = "one without tenants" if found is None else f"that of {found!r:.80}"
        raise TenantError(
            f"Expected the collection of the tenant {name!r:.80}, found {whose}. Add its records instead."
        )


def check_names_a_tenant(settings: Mapping[str, Any]) -> None:
    """Refuse the common store of tenants in place of a tenant's collection.

    Args:
        settings: Settings of a store.

    Raises:
        TenantError: It is that.
    """
    if is_common(settings):
        raise TenantError(
            "Expected one tenant to be named, found a store that holds a collection for each: "
            'Tenants.open(…).get("name"), or --tenant NAME.'
        )


def stamped(records: Iterable[Record], settings: Mapping[str, Any]) -> Iterable[Record]:
    """Add the tenant's name to the metadata of its collection's records; return other records unchanged.

    Args:
        records: Records to add; the result has a length if these have one.
        settings: Settings of the store.

    Raises:
        TenantError: A record names another tenant; raised after the records before it were yielded.
    """
    return records if "tenant" not in settings else _stamped(records, settings["tenant_key"], settings["tenant"])


def _stamped(records: Iterable[Record], key: str, name: str) -> Iterator[Record]:
    for position, record in enumerate(records):
        found = value_at(record.metadata, key) if _has_metadata(record) else name
        if found is None:
            yield replace(record, metadata={**record.metadata, key_of(key): name})
        elif found == name:
            yield record
        else:
            raise TenantError(f"Record {position}: expected {key!r} to be {name!r} or absent, found {found!r:.80}.")


def _has_metadata(record: object) -> bool:
    """Return True if it is a record with metadata; any other is refused later, where records are validated."""
    return isinstance(record, Record) and isinstance(cast(object, record.metadata), Mapping)
