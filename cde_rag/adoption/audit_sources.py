"""Stores of other applications, by their targets."""

import os
import sqlite3
import sys
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from cde_rag._files import user_path
from cde_rag.adoption.movable import Movable
from cde_rag.adoption.move_journal import JOURNALS
from cde_rag.errors import CDEError, StoreError, require

_FORMS: Final = (
    "qdrant:URL#NAME, qdrant:FOLDER#NAME, chroma:URL#NAME, chroma:FOLDER#NAME, lancedb:FOLDER#NAME, "
    "pgvector:URL#TABLE, langchain-faiss:FOLDER, llamaindex:FOLDER or open-webui:FOLDER"
)
KINDS: Final = ("qdrant", "chroma", "lancedb", "pgvector", "langchain-faiss", "llamaindex", "open-webui")
_USUAL_NAMES: Final = {"langchain-faiss": "index", "llamaindex": "default", "open-webui": "vector_db"}


@contextmanager
def source_of(
    target: str, *, text: str | None = None, vector: str | None = None, seed: int = 0
) -> Generator[Movable, None, None]:
    """Open the store named by a target, to audit, search or move it, for the duration of a `with`.

    Args:
        target: `qdrant:http://localhost:6333#papers`, `qdrant:folder#papers` (the client's local mode),
            `chroma:folder#papers`, `chroma:http://localhost:8000#papers`, `lancedb:folder#papers`,
            `pgvector:postgresql://user@host/database#table`, `langchain-faiss:folder` (`#index` by default),
            `llamaindex:folder` (`#default`), or `open-webui:folder`, its data folder.
        text: Location of the text: for Qdrant the payload key, or `langchain` or `llamaindex`; for LanceDB and pgvector
            the column. By default the first of the usual names.
        vector: Name of the vector, or column, if there are several.
        seed: Random seed of the sample; Qdrant and PostgreSQL use their own.

    Raises:
        MissingExtraError: The client of that store is not installed.
        StoreError: There is no such store, it cannot be read, or the target is of another form.
    """
    openers = {
        "qdrant": _qdrant,
        "chroma": _chroma,
        "lancedb": _lancedb,
        "pgvector": _pgvector,
        "langchain-faiss": _langchain_faiss,
        "llamaindex": _llamaindex,
        "open-webui": _open_webui,
    }
    kind, shown, place, name = _parts(target)
    with openers[kind](shown, place, name, text, vector, Random(seed)) as source:
        yield source


def _parts(target: str) -> tuple[str, str, str, str]:
    """Return kind, form for messages, place and name of a target.

    Raises:
        StoreError: It has another form.
    """
    kind, _, rest = target.partition(":")
    place, _, name = rest.rpartition("#")
    if kind in _USUAL_NAMES and "#" not in rest:
        place, name = rest, _USUAL_NAMES[kind]
    if kind not in KINDS or not place or not name:
        raise StoreError(f"Expected a target such as {_FORMS}, found another{f' of {kind}' if kind in KINDS else ''}.")
    secret = kind == "pgvector" or "@" in target
    return kind, f"{kind}:{'…' if secret else place}#{'…' if '@' in name else name}", place, name


@contextmanager
def _qdrant(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    del random  # Qdrant draws by itself
    client_of = require("qdrant_client", "qdrant").QdrantClient
    from cde_rag.adoption.qdrant_source import QdrantSource

    with _as_store_errors(target, OSError, RuntimeError, ValueError):
        if "://" in place:
            where, home = {"url": place}, Path(f"{name}{JOURNALS}")
        else:
            folder = _folder(target, place, "meta.json")
            where, home = {"path": str(folder)}, _journal(folder, name)
        client = client_of(**where, check_compatibility=False)
        try:
            yield QdrantSource(target, client, name, text, vector, home)
        finally:
            client.close()


@contextmanager
def _chroma(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    chromadb, errors = _chromadb()
    from cde_rag.adoption.chroma_collection import ChromaCollection

    _no_choice(target, "Chroma", text=text, vector=vector)
    with _as_store_errors(target, *errors):
        if "://" in place:
            client, home = _chroma_server(chromadb, target, place), Path(f"{name}{JOURNALS}")
        else:
            folder = _folder(target, place, "chroma.sqlite3")
            _check_schema(target, chromadb, folder)
            client, home = chromadb.PersistentClient(path=str(folder)), _journal(folder, name)
        with nullcontext() if "://" in place else _closed(client):
            source = ChromaCollection(target, client, name, home, random)
            source.check_there()
            yield source


@contextmanager
def _open_webui(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    chromadb, errors = _chromadb()
    from cde_rag.adoption.open_webui import OpenWebUIFolder
    from cde_rag.adoption.open_webui_setting import EmbeddingSetting

    _no_choice(target, "Open WebUI", text=text, vector=vector)
    with _as_store_errors(target, *errors):
        folder = _folder(target, str(Path(place) / name), "chroma.sqlite3")
        _check_schema(target, chromadb, folder)
        setting = EmbeddingSetting.read(folder.parent)
        with _closed(chromadb.PersistentClient(path=str(folder))) as client:
            yield OpenWebUIFolder(target, client, _journal(folder, "all"), random, setting)


@contextmanager
def _closed(client: Any) -> Generator[Any, None, None]:
    """Close a client of a folder at the end; all clients that a process has of one are one, which the last one closes.

    Older versions have no `close`, and keep their files open until the process ends. A server's client has none that
    closes its connection.
    """
    try:
        yield client
    finally:
        if hasattr(client, "close"):
            client.close()


def _check_schema(target: str, chromadb: Any, folder: Path) -> None:
    """Refuse a folder of an older Chroma, which the installed one would change, so that its own could not read it.

    Raises:
        StoreError: See above; or its database cannot be read.
    """
    try:
        found = _steps(folder)
    except sqlite3.Error as error:
        raise StoreError(f"{target}: expected Chroma's database in chroma.sqlite3, found: {error!s:.120}.") from error
    if _newest(chromadb) - found:
        raise StoreError(
            f"{target}: expected a folder of Chroma {chromadb.__version__}, which is installed here, found one of an "
            "older version. Opening it would change it, so that its application could not read it any more. It is left "
            "alone: upgrade Chroma in the application, start that once, and run this again."
        )


@cache
def _newest(chromadb: Any) -> set[tuple[str, int]]:
    """Return the migrations of the installed Chroma, which has them in compiled code: those of a new folder."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made,
        _closed(chromadb.PersistentClient(path=made)),
    ):
        return _steps(Path(made))


def _steps(folder: Path) -> set[tuple[str, int]]:
    """Return the migrations that a folder's database has had."""
    file = (folder / "chroma.sqlite3").absolute().as_uri()
    with closing(sqlite3.connect(f"{file}?mode=ro", uri=True)) as database:
        return set(database.execute("SELECT dir, version FROM migrations"))


def _chromadb() -> tuple[Any, tuple[type[Exception], ...]]:
    """Return Chroma, which sends nothing, and the errors that it raises."""
    if "chromadb" not in sys.modules:  # what its older versions send, is set when a client is made
        os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
    chromadb = require("chromadb", "chroma")
    return chromadb, (chromadb.errors.ChromaError, OSError, RuntimeError, ValueError)


def _chroma_server(chromadb: Any, target: str, place: str) -> Any:
    address = urlsplit(place)
    rest = address.username or address.path.strip("/") or address.query
    if address.scheme not in ("http", "https") or not address.hostname or rest:  # which the client would leave out
        raise StoreError(f"{target}: expected an address such as http://localhost:8000, found another.")
    ssl = address.scheme == "https"
    return chromadb.HttpClient(host=address.hostname, port=address.port or (443 if ssl else 8000), ssl=ssl)


@contextmanager
def _langchain_faiss(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    from cde_rag.adoption.langchain_faiss import LangChainFaiss

    _no_choice(target, "LangChain's FAISS", text=text, vector=vector)
    folder = _folder(target, place, f"{name}.faiss")
    yield LangChainFaiss(target, folder, name, _journal(folder, name), random)


@contextmanager
def _llamaindex(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    from cde_rag.adoption.llamaindex_folder import LlamaIndexFolder

    _no_choice(target, "LlamaIndex", text=text, vector=vector)
    folder = _folder(target, place, f"{name}__vector_store.json")
    yield LlamaIndexFolder(target, folder, name, _journal(folder, name), random)


def _journal(folder: Path, name: str) -> Path:
    """Return the folder of a move's journal next to a store."""
    folder = folder.resolve()
    return folder.with_name(f"{folder.name}{JOURNALS}") / name


@contextmanager
def _lancedb(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    from cde_rag.adoption.lance_table import LanceTable

    folder = _folder(target, place, f"{name}.lance")
    with _as_store_errors(target, OSError, RuntimeError, ValueError):
        source = LanceTable(target, folder, name, text, vector, _journal(folder, name), random)
        source.count()
        yield source


@contextmanager
def _pgvector(
    target: str, place: str, name: str, text: str | None, vector: str | None, random: Random
) -> Generator[Movable, None, None]:
    del random  # PostgreSQL draws by itself
    psycopg = require("psycopg", "postgres")
    from cde_rag.adoption.pgvector_source import PgvectorSource

    try:
        asked = psycopg.conninfo.conninfo_to_dict(place)
    except psycopg.ProgrammingError as error:  # whose text repeats parts of the address, be they a password
        raise StoreError(
            f"{target}: expected an address such as postgresql://user@host/database, found another."
        ) from error
    # no prepared statements and settings of the session, which a transaction pooler gives to other clients
    options = {"client_encoding": "utf8", **asked, "autocommit": True, "prepare_threshold": None}
    with _as_store_errors(target, psycopg.Error), psycopg.connect(**options) as connection:
        yield PgvectorSource(target, connection, name.split("."), text, vector, Path(f"{name}{JOURNALS}"))


@contextmanager
def _as_store_errors(target: str, *errors: type[Exception]) -> Generator[None, None, None]:
    """Convert a client's errors to StoreError."""
    try:
        yield
    except CDEError:
        raise
    except errors as error:
        raise StoreError(f"{target}: not readable. {type(error).__name__}: {error!s:.200}") from error


def _folder(target: str, place: str, expected: str) -> Path:
    """Return the folder of a database.

    It must contain the expected entry, since a client would create a database in any folder.
    """
    if "\0" not in place and ((folder := user_path(place)) / expected).exists():
        return folder
    raise StoreError(f"{target}: expected a folder with {expected}, found none there.")


def _no_choice(target: str, whose: str, **given: str | None) -> None:
    for option, value in given.items():
        if value is not None:
            raise StoreError(f"{target}: {whose} has one text and one vector for each id; leave --{option} out.")
