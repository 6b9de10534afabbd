"""Following a store to another context while it is in use."""

from collections.abc import Callable
from typing import TypeVar

from cde_rag.context import Context
from cde_rag.embedder import ContextualEmbedder
from cde_rag.errors import ContextMismatchError, ModelError
from cde_rag.model import CDEModel
from cde_rag.stores.base import Store

Result = TypeVar("Result")


class ActiveEmbedder:
    """The embedder of a store's active generation. Thread-safe.

    Args:
        store: Holds a collection.
        embedder: Of the space that is active now.

    Raises:
        ContextMismatchError: The embedder is of another space.
    """

    def __init__(self, store: Store, embedder: ContextualEmbedder) -> None:
        expected = store.manifest().fingerprint
        if expected != embedder.fingerprint:
            raise ContextMismatchError(expected=expected, found=embedder.fingerprint)
        self._store = store
        self._embedder = embedder

    @property
    def last(self) -> ContextualEmbedder:
        """What was used last; the store is not asked."""
        return self._embedder

    @property
    def embedder(self) -> ContextualEmbedder:
        """Of the space that is active now.

        Raises:
            ContextMismatchError: The active Context was made by other weights than the embedder before.
        """
        if self._store.manifest().fingerprint != self._embedder.fingerprint:
            self._embedder = bound(self._store, self._embedder.model)
        return self._embedder

    def use(self, work: Callable[[ContextualEmbedder], Result]) -> Result:
        """Do something in the active space; again, where another generation was activated meanwhile.

        Args:
            work: Can be done again where it raises ContextMismatchError.

        Raises:
            ContextMismatchError: The active Context was made by other weights than the embedder before.
        """
        while True:
            embedder = self._embedder
            try:
                return work(embedder)
            except ContextMismatchError as error:
                if error.found != embedder.fingerprint:
                    raise  # it is something else that does not match
                self._embedder = self.embedder


def bound(store: Store, model: CDEModel, generation: int | None = None) -> ContextualEmbedder:
    """A model bound to the Context of a generation; of the active one by default.

    Raises:
        ContextFormatError: The stored Context is damaged, or of a newer format.
        ContextMismatchError: It was made by other weights.
    """
    return ContextualEmbedder(model, Context.from_bytes(store.context(generation), where="The context in the store"))


def loaded(store: Store, *, device: str | None, dtype: str | None) -> ContextualEmbedder:
    """The embedder of a store's active generation, its model loaded by the name that is in the Context.

    Raises:
        ContextFormatError: As `bound`.
        ModelError: There is no model of that name here.
    """
    context = Context.from_bytes(store.context(), where="The context in the store")
    name = context.identity.name
    try:
        model = CDEModel.from_pretrained(name, device=device, dtype=dtype)
    except ModelError as error:
        raise ModelError(
            f"The collection was made with the model {name!r}. {error} "
            "Where its files are elsewhere: Collection.open(store, model=folder)."
        ) from error
    return ContextualEmbedder(model, context)
