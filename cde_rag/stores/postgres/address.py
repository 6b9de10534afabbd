"""Addresses of collections in PostgreSQL: `postgresql://user@host/database/collection`."""

import re
from pathlib import PurePosixPath
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from cde_rag.errors import StoreError

SCHEMES: Final = ("postgresql", "postgres")
_SECRET: Final = re.compile("password|secret", re.IGNORECASE)  # in names of libpq's parameters
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


class Address(NamedTuple):
    """A collection in a database.

    Attributes:
        dsn: Address of the database, for libpq.
        name: Name of the collection, which is that of its schema.
    """

    dsn: str
    name: str

    @classmethod
    def parse(cls, address: str) -> "Address":
        """Take an address apart: the last part of its path is the collection, the one before it the database.

        Raises:
            StoreError: Another scheme, or no database, or no collection in the path.

        Examples:
            >>> Address.parse("postgresql://me@localhost/app/papers")
            Address(dsn='postgresql://me@localhost/app', name='papers')
        """
        parts = urlsplit(address)
        path = PurePosixPath(parts.path)
        if parts.scheme not in SCHEMES or len(path.parts) != 3:  # "/", database, collection
            raise StoreError(
                "Expected an address such as postgresql://user@host/database/collection, found "
                f"{without_password(address)!r}. Name the database, and after it the collection."
            )
        dsn = urlunsplit(parts._replace(path=f"/{path.parts[1]}"))
        return cls(dsn, checked_name(unquote(path.name)))


def checked_name(name: str) -> str:
    """Return the name of a collection.

    Raises:
        StoreError: It cannot be the name of a schema.
    """
    if not _NAME.fullmatch(name) or name.startswith("pg_") or name == "public":
        raise StoreError(
            f"Expected the name of a collection of up to 63 letters, digits, _ and -, found {name!r:.80}. "
            "It becomes a schema; public and names that begin with pg_ belong to PostgreSQL."
        )
    return name


def without_password(address: str, collection: str = "") -> str:
    """Return an address for messages, without passwords and secrets.

    Args:
        address: Address of a database, or of a collection.
        collection: A collection's name to add to the address of its database.

    Examples:
        >>> without_password("postgresql://me:secret@localhost:5433/app?sslpassword=secret&host=/tmp", "papers")
        'postgresql://me@localhost:5433/app/papers?host=/tmp'
    """
    added = f"/{collection}" if collection else ""
    if "://" not in address:  # keywords and values, in which a password is hard to tell
        return f"PostgreSQL{added}"
    scheme, _, rest = address.partition("://")
    authority = rest.partition("/")[0]
    user, at, _ = authority.rpartition("@")
    place, _, query = rest[len(user) + len(at) :].partition("?")
    kept = "&".join(part for part in query.split("&") if part and not _SECRET.search(unquote(part.partition("=")[0])))
    return f"{scheme}://{user.partition(':')[0]}{at}{place}{added}{'?' if kept else ''}{kept}"
