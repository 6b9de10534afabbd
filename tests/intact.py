"""Checks that a collection is intact: its checksums, and a sample of its vectors made again."""

from cde_rag import Collection


def damages(collection: Collection) -> list[str]:
    """Return the findings of `verify` and `audit`."""
    found = [f"{damage.where}: {damage.found}" for damage in collection.verify()]
    return found or ([*collection.audit().others] if collection.count() else [])
