"""Registry of a server's collections and contexts, under their model names."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from cde_rag.collection.collection import Collection
from cde_rag.embedders.protocol import Embedder, unwrapped
from cde_rag.errors import ContextMismatchError
from cde_rag.models.plain.fixed_texts import corpus_size
from cde_rag.search.fusion import Ranking, ranking_of
from cde_rag.server.error_responses import RequestError
from cde_rag.server.search_results import has_bm25
from cde_rag.server.token_batcher import BatchedEmbedder, Role, TokenBatcher

SUFFIXES: Final[dict[str, Role]] = {":query": "query", ":document": "document"}
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"


@dataclass(frozen=True, eq=False)
class ServedCollection:
    """A collection under its name.

    Attributes:
        name: Name in addresses and in ids of models.
        collection: The collection; its embedder goes through the batcher.
        has_bm25: True if it can be searched by BM25.
        folder: Its folder on this machine, if it is in one.
    """

    name: str
    collection: Collection
    has_bm25: bool
    folder: Path | None = None

    @property
    def disk_bytes(self) -> int | None:
        """Bytes of the files in its folder; None without one."""
        if self.folder is None:
            return None
        total = 0
        for path in self.folder.rglob("*"):
            with suppress(FileNotFoundError):  # of a file that is written anew at this moment
                total += path.stat().st_size if path.is_file() else 0
        return total

    def by(self, wanted: Ranking) -> Ranking:
        """Return the ranking to use: the wanted one by its name, or vectors for "hybrid" where there is no text index.

        Raises:
            RequestError: BM25 is wanted, and there is no text index.
        """
        wanted = ranking_of(wanted)
        if self.has_bm25 or wanted == "vectors":
            return wanted
        if wanted == "hybrid":
            return "vectors"
        hint = "Search by vectors; or add it with cde-rag reindex, and start the server again."
        raise RequestError(400, f"The collection {self.name!r} has no text index. {hint}", code="no_bm25", param="by")


@dataclass(frozen=True)
class ServedModel:
    """A model bound to a context, as it is named in requests.

    Attributes:
        id: `MODEL@NAME`, with the name of a collection or a context.
        embedder: Its embedder.
        role: Role that the name's suffix gave.
    """

    id: str
    embedder: Embedder
    role: Role | None = None

    def described(self) -> dict[str, Any]:
        """Return the JSON object of `/v1/models`."""
        context, identity = self.embedder.context, self.embedder.context.identity
        return {
            "id": self.id,
            "object": "model",
            "created": seconds_of(context.manifest.created),
            "owned_by": "cde-rag",
            "fingerprint": self.embedder.fingerprint,
            "dimensions": self.embedder.dim,
            "max_input_tokens": identity.max_length,
            "max_siblings": self.embedder.max_siblings,
            "context_documents": corpus_size(context),
        }


class Registry:
    """Collections and contexts under their names. Thread-safe.

    Args:
        collections: Open collections by name. The batcher wraps their embedders.
        batcher: Batcher of all texts.
        contexts: Embedders of further contexts by name.
        folders: Folders of collections by name, where they are in folders of this machine.
    """

    def __init__(
        self,
        collections: Mapping[str, Collection],
        batcher: TokenBatcher,
        contexts: Mapping[str, Embedder] | None = None,
        folders: Mapping[str, Path] | None = None,
    ) -> None:
        self.batcher = batcher
        self._lock = threading.Lock()
        self._contexts = dict(contexts or {})
        self.collections: dict[str, ServedCollection] = {}
        for name, collection in collections.items():
            collection.embedder = BatchedEmbedder(collection.embedder, batcher)
            self.collections[name] = ServedCollection(name, collection, has_bm25(collection), (folders or {}).get(name))

    def collection(self, name: str) -> ServedCollection:
        """Return a collection.

        Raises:
            RequestError: 404, there is none of this name.
        """
        if name in self.collections:
            return self.collections[name]
        raise _missing("collection", name, self.collections)

    def reopen(self, name: str) -> None:
        """Let a collection follow its stored settings, such as the weight of hybrid search, which have changed."""
        served = self.collection(name)
        collection = Collection(served.collection.store, served.collection.embedder)
        collection.embed_budget_ms = served.collection.embed_budget_ms
        self.collections[name] = replace(served, collection=collection)

    def models(self) -> list[ServedModel]:
        """Return all models; reads the manifests of the collections."""
        with self._lock:
            embedders = dict(self._contexts)
        for name, served in self.collections.items():
            embedders[name] = unwrapped(served.collection.embedder)
        return [ServedModel(f"{each.context.identity.name}@{name}", each) for name, each in embedders.items()]

    def model(self, wanted: str) -> ServedModel:
        """Return the model of a request: `MODEL@NAME` or `NAME`, with the suffix `:query` or `:document` or none.

        Raises:
            RequestError: 404, there is none of this name.
        """
        for suffix, role in [*SUFFIXES.items(), ("", None)]:
            asked = wanted.removesuffix(suffix)
            name = asked.rpartition("@")[2]
            embedder = self._embedder(name) if wanted.endswith(suffix) else None
            if embedder is not None:
                model = ServedModel(f"{embedder.context.identity.name}@{name}", embedder, role)
                if asked in (model.id, name):
                    return model
        raise _missing("model", wanted, [model.id for model in self.models()])

    def _embedder(self, name: str) -> Embedder | None:
        served = self.collections.get(name)
        return self.contexts.get(name) if served is None else unwrapped(served.collection.embedder)

    @property
    def contexts(self) -> dict[str, Embedder]:
        """Embedders of the contexts that are no collection's."""
        with self._lock:
            return dict(self._contexts)

    def add_context(self, name: str, embedder: Embedder) -> None:
        """Serve a context.

        Raises:
            RequestError: 409, there is a collection or another context of this name.
        """
        with self._lock:
            self.check_free(name, self._contexts)
            self._contexts[name] = embedder

    def check_free(self, name: str, contexts: Mapping[str, object]) -> None:
        """Refuse a name that is taken.

        Raises:
            RequestError: 409, there is a collection or a context of this name.
        """
        if name in contexts or name in self.collections:
            message = f"The name {name!r} is taken. Choose another, or delete that context first."
            raise RequestError(409, message, code="name_taken", param="name", headers={"x-should-retry": "false"})

    def remove_context(self, name: str) -> None:
        """Serve a context no longer.

        Raises:
            RequestError: 404, there is none of this name.
        """
        with self._lock:
            if name not in self._contexts:
                raise _missing("context", name, self._contexts)
            del self._contexts[name]

    def close(self) -> None:
        """Close all collections."""
        for served in self.collections.values():
            served.collection.close()


def check_fingerprint(wanted: str | None, found: str) -> None:
    """Refuse a request that names another vector space.

    Raises:
        ContextMismatchError: The fingerprints differ.
    """
    if wanted is not None and wanted != found:
        remedy = "The collection moved to another context, or the vectors are another one's: embed them again."
        raise ContextMismatchError(expected=wanted, found=found, remedy=remedy)


def seconds_of(created: str) -> int:
    """Return an ISO 8601 instant in seconds since 1970."""
    return int(datetime.fromisoformat(created).timestamp())


def _missing(kind: str, name: str, known: object) -> RequestError:
    names = ", ".join(sorted(cast(list[str], known))) or "none"
    return RequestError(
        404, f"There is no {kind} {name!r:.200}; there are: {names}.", code=f"{kind}_not_found", param=kind
    )
