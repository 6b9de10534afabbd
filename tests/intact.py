"""Whether a collection is intact: its checksums, and a sample of its vectors made again."""

from cde_rag import Collection


def damages(collection: Collection) -> list[str]:
    """What `verify` and `audit` find."""
    found = [f"{damage.where}: {damage.found}" for damage in collection.verify()]
    return found or ([*collection.audit().others] if collection.count() else [])
