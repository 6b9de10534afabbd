"""What tenants are called, where their records say so, and where their stores are."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, cast

from cde_rag.errors import TenantError
from cde_rag.stores.base import Record

LONGEST_NAME: Final = 1024  # characters
_HEX: Final = 32  # 128 bits


def check_name(name: str) -> str:
    """The name of a tenant, as it was given: names that differ in anything, such as case, are different tenants.

    Raises:
        TenantError: It is no string, blank, no valid Unicode, or longer than LONGEST_NAME.
    """
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
    """What stands for a tenant's name where files and collections are named: 32 hex digits, whatever the name.

    Raises:
        TenantError: It cannot be the name of a tenant.
    """
    return hashlib.sha256(check_name(name).encode()).hexdigest()[:_HEX]


def is_common(settings: Mapping[str, Any]) -> bool:
    """Whether a store with these settings is the one that tenants have in common."""
    return "tenant_key" in settings and "tenant" not in settings


def check_is_of(settings: Mapping[str, Any], name: str) -> None:
    """Refuse what is to be a tenant's collection and is another's, or nobody's.

    Args:
        settings: Of a store, an export or a backup.
        name: Of the tenant.

    Raises:
        TenantError: It is not the tenant's.
    """
    found = settings.get("tenant")
    if found != check_name(name):
        whose = "one without tenants" if found is None else f"that of {found!r:.80}"
        raise TenantError(
            f"Expected the collection of the tenant {name!r:.80}, found {whose}. Add its records instead."
        )


def check_names_a_tenant(settings: Mapping[str, Any]) -> None:
    """Refuse the store that tenants have in common, which is nobody's.

    Args:
        settings: Of a store.

    Raises:
        TenantError: It is that.
    """
    if is_common(settings):
        raise TenantError(
            "Expected one tenant to be named, found a store that holds a collection for each: "
            'Tenants.open(…).tenant("name"), or --tenant NAME.'
        )


def stamped(records: Iterable[Record], settings: Mapping[str, Any]) -> Iterable[Record]:
    """The records of a tenant's collection, with its name in their metadata; any others as they are.

    Args:
        records: What is to be added; sized where it was.
        settings: Of the store.

    Raises:
        TenantError: A record names another tenant; those before it were given out.
    """
    return records if "tenant" not in settings else _stamped(records, settings["tenant_key"], settings["tenant"])


def _stamped(records: Iterable[Record], key: str, name: str) -> Iterator[Record]:
    for position, record in enumerate(records):
        found = record.metadata.get(key) if _has_metadata(record) else name
        if found is None:
            yield replace(record, metadata={**record.metadata, key: name})
        elif found == name:
            yield record
        else:
            raise TenantError(f"Record {position}: expected {key!r} to be {name!r} or absent, found {found!r:.80}.")


def _has_metadata(record: object) -> bool:
    """What has none is refused with the reason where records are checked."""
    return isinstance(record, Record) and isinstance(cast(object, record.metadata), Mapping)
