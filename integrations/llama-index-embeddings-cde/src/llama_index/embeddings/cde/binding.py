"""An embedding model bound to one context, which goes with it to files, dictionaries and worker processes."""

import asyncio
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast
from uuid import uuid4

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.embeddings.cde.callers import Caller, caller_of
from llama_index.embeddings.cde.copies import cache, find, keep
from llama_index.embeddings.cde.inspection import EmbeddingInspection
from llama_index.embeddings.cde.marks import mark, marks_of, spaces
from llama_index.embeddings.cde.own_model import check_owner, function_of, name_of
from llama_index.embeddings.cde.samples import asample, sample, sampled_store
from llama_index.embeddings.cde.spaces import REMEDY, check, vector_name
from pydantic import AfterValidator, ModelWrapValidatorHandler, ValidationError, model_validator
from typing_extensions import Self, override

from cde_rag import Context, ContextualEmbedder, EmbedderOptions
from cde_rag._files import user_path
from cde_rag._validation import unknown_keyword, wrong_argument
from cde_rag.context.cache import cached_context
from cde_rag.embedders.active import loaded
from cde_rag.embedders.contextual import as_model
from cde_rag.errors import ContextMismatchError, ContextMissingError
from cde_rag.models.model import Model
from cde_rag.models.named import is_served
from cde_rag.models.runtimes.stage_runner import Dtype

if TYPE_CHECKING:
    from qdrant_client import QdrantClient

DEFAULT_MODEL = "cde-mini"
OFF = "This embedding makes none by itself (auto_fit=False)"
IN_WORKER = (
    "A worker process (num_workers) sees a part of the corpus, and makes none. Make the context before the pipeline "
    "runs, or run it without num_workers"
)
UNFITTED = "unfitted"  # among the fields in a dictionary, without being one
CONTEXT_FILE = "cde.context.safetensors"  # in LlamaIndex's folder, beside docstore.json


def _as_written(path: str | Path | None) -> str | None:
    """Convert a path to its form in dictionaries and JSON."""
    return None if path is None else str(path)


def write(context: Context, path: str | Path) -> None:
    """Write a context, but over no other.

    Raises:
        ContextError: The place is not writable, or full.
        ContextMismatchError: The file is the context of other vectors.
    """
    if user_path(path).exists() and (kept := Context.load(path).fingerprint) != context.fingerprint:
        remedy = f"{path} is the context of those: choose another place, or delete it if the vectors are gone."
        raise ContextMismatchError(expected=kept, found=context.fingerprint, remedy=remedy)
    context.save(path)


class BoundEmbedding(BaseEmbedding):
    """An embedding model that has one context, or waits for it. Thread-safe."""

    model_config = ConfigDict(extra="forbid")  # a mistyped context_path must not pass

    model: BaseEmbedding | None = Field(
        default=None,
        exclude=True,  # it may hold a key
        repr=False,
        description="Your own embedding, such as OpenAIEmbedding(): its vectors are mapped by the corpus. It is stored "
        "nowhere, so give it again where the index is loaded.",
    )
    model_name: str = Field(
        default=DEFAULT_MODEL,
        description='A bundled name, a folder, a hub id such as "BAAI/bge-small-en-v1.5", or a model that an API '
        'serves: "openai:text-embedding-3-small" or "http://localhost:8000/v1#bge-m3", with the key in OPENAI_API_KEY. '
        "The corpus maps the vectors of a plain model.",
    )
    context_path: Annotated[str | Path | None, AfterValidator(_as_written)] = Field(
        default=None, description="The context's file: loaded where it exists, else written when the context is made."
    )
    fingerprint: str | None = Field(default=None, description="Of the vector space; None until there is a context.")
    context_size: int | None = Field(
        default=None, ge=1, description="Documents in a context that is made here; what the model expects, or 512."
    )
    seed: int = Field(default=0, description="Of the sample that a context is made of.")
    windows: bool = Field(
        default=False,
        description="Whether texts longer than the model's window are read in windows, in a context that is made here; "
        "then what the context says. By default they are cut.",
    )
    auto_fit: bool = Field(default=True, description="Whether the first build makes the context.")
    device: str | None = Field(
        default=None, description="Where the model computes, unless an API serves it; see cde_rag.CDEModel."
    )
    dtype: Dtype | None = Field(default=None, description="What it computes in; see cde_rag.CDEModel.")
    embed_batch_size: int = Field(default=32, gt=0, le=2048, description="Texts per forward pass.")

    _context: Context | None = PrivateAttr(default=None)
    _embedder: ContextualEmbedder | None = PrivateAttr(default=None)
    _loaded: Model | ContextualEmbedder | None = PrivateAttr(default=None)
    _makes_none: str = PrivateAttr(default=OFF)  # why, where auto_fit is off
    _lock: Any = PrivateAttr(default_factory=threading.RLock)
    _with_parent: int = PrivateAttr(default=0)
    _without_parent: int = PrivateAttr(default=0)

    @model_validator(mode="wrap")
    @classmethod
    def _only_what_there_is(cls, given: Any, validated: ModelWrapValidatorHandler[Self]) -> Self:
        """Refuse unknown and wrong arguments, and names in place of your own embedding, in one sentence.

        Raises:
            TypeError: There are such.
        """
        if not isinstance(given, dict):
            return validated(given)
        named = dict(cast(dict[str, Any], given))
        named.pop("class_name", None)  # of `model_dump`
        if isinstance(model := named.get("model"), str | Path):
            raise TypeError(
                f"model is your own embedding, such as model=OpenAIEmbedding(model={str(model)!r}), found a name: give "
                "that, or any model by its name: model_name=…."
            )
        for name in named:
            if name not in cls.model_fields:
                raise unknown_keyword(cls.__name__, name, sorted(cls.model_fields))
        try:
            return validated(named)
        except ValidationError as error:
            raise wrong_argument(cls.__name__, error.errors()[0], cls.model_fields) from error

    @override
    def model_post_init(self, context: Any, /) -> None:
        """Load the context's file, where there is one; pydantic calls this."""
        super().model_post_init(context)
        if self.model is not None:
            self._name_own(name_of(self.model))
        self._load()

    @classmethod
    def load(cls, path: str | Path, *, model_name: str = DEFAULT_MODEL, model: BaseEmbedding | None = None) -> Self:
        """Load the context that `save` wrote.

        Raises:
            ContextFormatError: The file is damaged, or of a newer format.
            ContextMismatchError: `model` is given, and the context is that of a bundled model.
            ContextMissingError: There is no such file.
            ModelError: The context was made with your own embedding, and `model` is not given.
        """
        if not user_path(path).exists():
            raise ContextMissingError(
                f"{path}: there is no such file. The embedding of the vectors writes it: embedding.save(path), or "
                "embedding.persist(persist_dir) next to storage_context.persist(persist_dir). If that is gone, and no "
                "node came or went since: CDEEmbedding.from_nodes(list(storage_context.docstore.docs.values()))."
            )
        fingerprint = Context.load(path).fingerprint
        return cls(context_path=str(path), fingerprint=fingerprint, model_name=model_name, model=model)

    @classmethod
    def from_persist_dir(
        cls,
        persist_dir: str | Path = "./storage",
        *,
        model_name: str = DEFAULT_MODEL,
        model: BaseEmbedding | None = None,
    ) -> Self:
        """Load the context that `persist` stored with an index; raises like `load`."""
        return cls.load(Path(persist_dir) / CONTEXT_FILE, model_name=model_name, model=model)

    @classmethod
    def from_qdrant(
        cls,
        client: "QdrantClient",
        collection: str,
        *,
        fingerprint: str | None = None,
        model_name: str = DEFAULT_MODEL,
        model: BaseEmbedding | None = None,
    ) -> Self:
        """Load the context stored with a Qdrant collection.

        Args:
            client: Client of a server, or in local mode.
            collection: Name of the collection or an alias of it.
            fingerprint: Fingerprint of the context, if there are several.
            model_name: As in the class.
            model: As in the class.

        Raises:
            ContextFormatError: The context is damaged.
            ContextMismatchError: As in `load`.
            ContextMissingError: There is none, or there are several and no `fingerprint` is given.
            ModelError: As in `load`.
        """
        from cde_rag.stores.qdrant import read_context

        embedding = cls(model_name=model_name, model=model)
        kept = read_context(client, collection, fingerprint)
        embedding._bind(Context.from_bytes(kept, where=f"The context of the collection {collection!r}"))
        return embedding

    def save_to_qdrant(self, client: "QdrantClient", collection: str) -> None:
        """Store the context with a Qdrant collection, which need not exist yet, for `from_qdrant`.

        Raises:
            ContextMissingError: There is no context yet.
        """
        from cde_rag.stores.qdrant import write_context

        context = self._bound().context
        write_context(client, collection, context.to_bytes(), fingerprint=context.fingerprint)

    def save(self, path: str | Path) -> None:
        """Write the context, `*.context.safetensors`, and remember where.

        Raises:
            ContextMismatchError: The file is the context of other vectors.
            ContextMissingError: There is no context yet.
        """
        write(self._bound().context, path)
        self.context_path = str(path)

    def persist(self, persist_dir: str | Path = "./storage") -> None:
        """Save the context in the folder of `storage_context.persist(persist_dir)`; raises like `save`."""
        user_path(persist_dir).mkdir(parents=True, exist_ok=True)
        self.save(Path(persist_dir) / CONTEXT_FILE)

    @property
    def vector_name(self) -> str:
        """Name of this space's vectors in Qdrant: `QdrantVectorStore(…, dense_vector_name=…)`.

        Raises:
            ContextMissingError: There is no context yet.
        """
        return vector_name(self._bound().fingerprint)

    @property
    def dim(self) -> int:
        """Length of an embedding; raises as `vector_name`."""
        return self._bound().dim

    def space(self) -> str | None:
        """Return the fingerprint; load the context from its file first if there is none yet."""
        with self._lock:
            self._load()
        return self.fingerprint

    def inspect(self) -> EmbeddingInspection:
        """Return the model, the context, and counts of texts with and without a parent."""
        manifest = None if self._context is None else self._context.manifest
        return EmbeddingInspection(
            model=self.model_name,
            fingerprint=self.fingerprint,
            context_size=0 if self._context is None else self._context.size,
            context_source=None if manifest is None else manifest.source,
            context_documents_seen=0 if manifest is None else manifest.documents_seen,
            texts_with_parent=self._with_parent,
            texts_without_parent=self._without_parent,
        )

    @override
    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Return the fields; `from_dict` restores the same embedding from them if the context is in a file.

        Raises:
            ContextMismatchError: Called by a pipeline whose store has vectors of another context.
        """
        data = super().to_dict(**kwargs)
        if self.fingerprint is None:
            data[UNFITTED] = uuid4().hex  # no cache of transformations may find what another context made
        elif (caller := caller_of(self)).pipeline is not None:  # it asks its cache: where that has the nodes, only this
            with self._lock:
                caller = self._sampled(caller)
                self._check(caller)
                self._mark(caller)
        return data

    @classmethod
    @override
    def from_dict(cls, data: dict[str, Any], **kwargs: Any) -> Self:
        """Restore an embedding from the fields of `to_dict`."""
        return super().from_dict({name: value for name, value in data.items() if name != UNFITTED}, **kwargs)

    @override
    def to_payload(self) -> dict[str, Any]:
        """Return the payload of events: names and the fingerprint, no texts."""
        return {**super().to_payload(), "fingerprint": self.fingerprint}

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a worker process: the fields, your own model, and the context as its file's bytes."""
        fields = {name: getattr(self, name) for name, field in type(self).model_fields.items() if not field.exclude}
        context = None if self._context is None else self._context.to_bytes()
        return {"fields": {**fields, "model": self.model}, "context": context}

    @override
    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state in a worker process, which has only a part of the corpus and never makes a context."""
        self.__init__(**{**state["fields"], "auto_fit": False})
        self._makes_none = IN_WORKER
        if self._context is None and state["context"] is not None:
            self._bind(Context.from_bytes(state["context"], where="The context from the main process"))

    @override
    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return a copy that shares model and context, which are immutable."""
        return self.model_copy()

    def _load(self) -> None:
        """Load the context from its file, or a known one from the cache."""
        if self._context is None and self.context_path is not None and user_path(self.context_path).exists():
            self._bind(Context.load(self.context_path))
        if self._context is None and self.fingerprint is not None and (kept := cached_context(self.fingerprint)):
            self._bind(kept)

    def _follow(self, caller: Caller) -> None:
        """Load the context of the caller's vectors, if there is none yet.

        Raises:
            ContextFormatError: A stored copy is damaged.
            ContextMismatchError: There are vectors of several contexts.
            ContextMissingError: The vectors are marked, and their context is found nowhere.
        """
        with self._lock:
            self._load()
            if self._context is None and (marks := marks_of(caller)):
                first, *others = sorted(marks)
                if others:
                    remedy = "An index has vectors of one context only. Build it anew of the texts."
                    raise ContextMismatchError(expected=first, found=others[0], remedy=remedy)
                self._bind(find(caller, first))

    def _sampled(self, caller: Caller) -> Caller:
        """Return the caller with a sample of its store's nodes."""
        self._follow(caller)
        store = self._unknown(caller)
        return caller if store is None else sample(caller, store, self._dim())

    async def _asampled(self, caller: Caller) -> Caller:
        """Return the caller with a sample of its store's nodes, from an asynchronous search."""
        await asyncio.to_thread(self._follow, caller)
        store = self._unknown(caller)
        return caller if store is None else await asample(caller, store, self._dim())

    def _unknown(self, caller: Caller) -> BasePydanticVectorStore | None:
        """Return the caller's store if its nodes have to be looked at: before each write, and before the first query.

        Another process that exchanges the vectors between two queries is not noticed.
        """
        store = sampled_store(caller)
        return None if store is None or (caller.queries and spaces.get(store) == (self.fingerprint or "")) else store

    def _check(self, caller: Caller) -> None:
        """Load the context of the caller's vectors, and refuse those of another; raises and warns as `check`."""
        self._follow(caller)
        check(caller, self.fingerprint)
        if self.fingerprint is not None and marks_of(caller) and (store := sampled_store(caller)) is not None:
            spaces.set(store, self.fingerprint)

    def _mark(self, caller: Caller) -> None:
        """Mark the caller's index, store and nodes, and store the context with them."""
        context = self._bound().context
        if mark(caller, context.fingerprint):
            keep(caller, context)

    def _model(self) -> Model | ContextualEmbedder:
        """Return the model, loaded on first use."""
        with self._lock:
            if self.model is None and self._context is not None:
                return self._bound().model
            return self._without_context()

    def _without_context(self) -> Model | ContextualEmbedder:
        if self._loaded is None and self.model is not None:
            self._loaded = function_of(self.model)
        if self._loaded is None:
            self._loaded = as_model(self.model_name, EmbedderOptions(device=self.device, dtype=self.dtype))
        return self._loaded

    def _named_model(self) -> Model | None:
        """Return the model that `model_name` names; None for a user's own embedding, which reads texts in its way."""
        found = None if self.model is not None else self._model()
        return found.model if isinstance(found, ContextualEmbedder) else found

    @property
    def _batch_size(self) -> int | None:
        """Texts per forward pass; None for an own model, which has its own number."""
        return self.embed_batch_size if self.model is None else None

    def _in_context(self, context: Context) -> ContextualEmbedder:
        """Bind the model to a context: one that is there, the one of `model_name`, or that which the context names."""
        options = EmbedderOptions(device=self.device, dtype=self.dtype, mini_batch_size=self._batch_size)
        if self.model is not None or self._loaded is not None:
            return ContextualEmbedder(self._without_context(), context, options=options.of_loaded)
        own = context.identity.name
        return loaded(
            context, model=None if self.model_name in (own, DEFAULT_MODEL) else self.model_name, options=options
        )

    def _dim(self) -> int:
        """Return the length of a vector."""
        return self._model().dim if self._context is None else self._context.identity.dim

    def _name_own(self, name: str) -> None:
        """Name the user's own embedding as the model; raises TypeError where there are fields of a bundled model."""
        given = {"windows": self.windows, "device": self.device, "dtype": self.dtype}
        wrong = [field for field, value in given.items() if value]
        if wrong or self.model_name not in (DEFAULT_MODEL, name):
            raise TypeError(
                f"{name} reads texts in its own way: leave {', '.join(wrong) or 'model_name'} out, which "
                f"{'are' if len(wrong) > 1 else 'is'} for the models of cde-rag."
            )
        self.model_name = name

    def _bind(self, context: Context, embedder: ContextualEmbedder | None = None) -> None:
        check_owner(context, self.model, self.model_name)
        if self.fingerprint not in (None, context.fingerprint):
            remedy = "This embedding keeps its context; make another CDEEmbedding for another context."
            raise ContextMismatchError(expected=self.fingerprint or "", found=context.fingerprint, remedy=remedy)
        if self.windows and not context.identity.windows:
            remedy = "Its vectors are of texts that were cut: leave windows out, or choose another context_path."
            raise ContextMismatchError(
                expected=context.with_windows(windows=True).fingerprint, found=context.fingerprint, remedy=remedy
            )
        self.windows = context.identity.windows
        self._context, self._embedder, self.fingerprint = context, embedder, context.fingerprint
        name = context.identity.name
        if self.model_name == DEFAULT_MODEL and not is_served(name):  # an alias, of another model tomorrow
            self.model_name, self._loaded = name, None
        cache(context)

    def _bound(self) -> ContextualEmbedder:
        """Return the embedder, loaded on first use.

        Raises:
            ContextMismatchError: The context was made by another model.
            ContextMissingError: There is no context.
            ModelError: The context names a model that is not there, or an address.
        """
        with self._lock:
            self._load()
            if self._context is None:
                name = "" if self.fingerprint is None else f" {self.fingerprint[:16]}…"
                place = "" if self.context_path is None else f" ({self.context_path} is no file)"
                raise ContextMissingError(f"There is no context{name}{place}. {REMEDY}")
            if self._embedder is None:
                self._embedder = self._in_context(self._context)
            return self._embedder
