"""The embedder of a store's active generation, replaced when another generation is activated."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from cde_rag.context.context import Context
from cde_rag.context.identity import ARITHMETIC
from cde_rag.embedders.protocol import Embedder, EmbedderOptions, unwrapped, wrapped_like
from cde_rag.errors import ContextMismatchError, ModelError, StoreError
from cde_rag.models.files.vector_cache import FILE, PlainVectors
from cde_rag.stores.store import Folder, Store
from cde_rag.stores.store_calls import StoreCalls

if TYPE_CHECKING:
    from cde_rag.embedders.contextual import AnyModel, ContextualEmbedder

UNFINISHED_IMPORT: Final = b"cde-rag: an import that did not finish"  # until it is complete
SWITCHES: Final = 8  # of the active generation that one call follows
Result = TypeVar("Result")


class ActiveEmbedder:
    """The embedder of a store's active generation. Thread-safe.

    Args:
        store: Holds a collection.
        embedder: Embedder of the space that is active now.

    Raises:
        ContextMismatchError: The embedder is of another space.
    """

    def __init__(self, store: Store, embedder: Embedder) -> None:
        self._store = store
        self.embedder = embedder

    @property
    def last(self) -> Embedder:
        """Embedder that was used last; does not read the store."""
        return self._embedder

    @property
    def embedder(self) -> Embedder:
        """Embedder of the active generation.

        Raises:
            ContextMismatchError: The active Context was made by a model that cannot be found under its name.
        """
        if self._store.manifest().fingerprint != self._embedder.fingerprint:
            self._embedder = bound(self._store, self._embedder)
        return self._embedder

    @embedder.setter
    def embedder(self, embedder: Embedder) -> None:
        expected = self._store.manifest().fingerprint
        if expected != embedder.fingerprint:
            raise ContextMismatchError(expected=expected, found=embedder.fingerprint)
        self._embedder = keeping(embedder, self._store)

    def use(self, work: Callable[[Embedder], Result]) -> Result:
        """Call a function with the active embedder; retry if another generation was activated meanwhile.

        Args:
            work: Function that can be called again after it raised ContextMismatchError.

        Raises:
            ContextMismatchError: The active Context was made by a model that cannot be found under its name.
            StoreError: Another generation was activated during every attempt.
        """
        for _ in range(SWITCHES):
            embedder = self._embedder
            with self.following(embedder):
                return work(embedder)
        raise too_many_switches()

    @contextmanager
    def following(self, embedder: Embedder) -> Generator[None, None, None]:
        """Catch the mismatch that a call raises if another generation was activated since its embedder was read.

        The call is to be repeated with the embedder that is then `last`.

        Raises:
            ContextMismatchError: The active Context was made by a model that cannot be found under its name.
        """
        try:
            yield
        except ContextMismatchError as error:
            if error.found != embedder.fingerprint:
                raise  # it is something else that does not match
            self._embedder = self.embedder


def too_many_switches() -> StoreError:
    """Return the error for a store whose active generation changed during every attempt."""
    return StoreError(
        f"Expected a vector space that stays for one call, found another in each of {SWITCHES} tries: other runs move "
        "this collection all the time. Wait until they have ended."
    )


def bound(store: Store, embedder: Embedder, generation: int | None = None) -> Embedder:
    """Bind an embedder to a generation's Context (default: the active one).

    Uses the same model if it made that Context, else loads the model named in it. Plain vectors are kept in the store's
    folder.

    Raises:
        ContextFormatError: The stored Context is damaged, or of a newer format.
        ContextMismatchError: It was made by other weights, which cannot be found under their name.
    """
    context, inner = stored_context(store, generation), unwrapped(embedder)
    try:
        made = inner.with_context(context)
    except ContextMismatchError as mismatch:
        try:
            made = loaded(context, options=inner.options)
        except ModelError as error:
            raise mismatch from error
    return wrapped_like(keeping(made, store), embedder)


def loaded(
    context: Context,
    *,
    model: "AnyModel | None" = None,
    options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
) -> "ContextualEmbedder":
    """Load the embedder of a stored Context; its model by the name in the Context, unless one is given.

    Raises:
        ContextMismatchError: The model has other weights than the one that made the Context.
        ModelError: There is no such model or runtime, it was a function, which has to be given, or the Context names an
            address, to which no text and no key is sent unless it is given.
        TypeError: A device, dtype or runtime for a model that is loaded.
    """
    # torch is imported where a model is loaded, so that a store is read without it
    from cde_rag.embedders.contextual import MINI_BATCH_SIZE, ContextualEmbedder, as_model
    from cde_rag.models.families import PLAIN
    from cde_rag.models.model import Model
    from cde_rag.models.named import is_served
    from cde_rag.models.runtimes import runtime_choice

    runtime_choice.asked(options.runtime)
    if isinstance(model, ContextualEmbedder):
        return ContextualEmbedder(model, context, options=options)
    identity = context.identity
    family = next((one for one in PLAIN if one.owns(identity)), None)
    if model is None and family is None and is_served(identity.name):
        raise ModelError(
            f"Expected the name of a model in the context, found {identity.name!r}: nothing is sent to a stored "
            "address, since whoever wrote it would get your texts and your key. Give the model if you trust it: "
            "model=…."
        )
    try:
        if family is None or isinstance(model, Model) or is_served(model):
            made = as_model(identity.name if model is None else model, options)
        else:
            made = family.load(identity, model, *options.of_loading, options.mini_batch_size or MINI_BATCH_SIZE)
        return ContextualEmbedder(made, context, options=options.of_loaded)
    except ModelError as error:
        if model is not None or not (family is None or family.has_files):
            raise
        raise ModelError(
            f"The collection was made with the model {identity.name!r}. {error} "
            "Where its files are elsewhere: Collection.open(store, model=folder)."
        ) from error


def keeping(embedder: Embedder, store: Store) -> Embedder:
    """Keep plain vectors in the folder of a store that has one, for a model under arithmetic."""
    from cde_rag.embedders.contextual import contextual

    own, place = contextual(embedder), plain_vectors(store)
    if own is None or own.context.identity.attention != ARITHMETIC or place is None:
        return embedder
    return own.with_plain_vectors(place)


def plain_vectors(store: Store) -> PlainVectors | None:
    """Return the place of a store's plain vectors; None if it has no folder."""
    return PlainVectors(store.folder / FILE) if isinstance(store, Folder) else None


def stored_context(store: StoreCalls, generation: int | None = None) -> Context:
    """Read the Context of a generation (default: the active one).

    Raises:
        ContextFormatError: It is damaged, or of a newer format.
        StoreError: An import did not finish.
    """
    data = store.context(generation)
    if data == UNFINISHED_IMPORT:
        raise StoreError("The store holds an import that did not finish. Run the same import again.")
    return Context.from_bytes(data, where="The context in the store")
