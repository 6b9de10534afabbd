"""Model: the port of all families of models. With a Context it is a vector space, see `ContextualEmbedder`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float32

from cde_rag._validation import check_texts
from cde_rag.context.context import Context
from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ModelError, TruncationError, TruncationWarning, warn_user
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.models.runtimes.attention import AUTO, Attention
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype

MOST_UNREAD: Final = 0.05  # share of the tokens of a call's texts; beyond it the rest cannot be found at all
CHECKED: Final = 8  # vectors given to `keep` that are compared with the model's own


@dataclass(frozen=True, slots=True)
class Embedded:
    """Embeddings, with flags for truncated texts.

    Attributes:
        vectors: Unit norm; row i belongs to text i.
        truncated: True for texts that exceeded the model's token limit.
    """

    vectors: Float32[np.ndarray, "texts dim"]
    truncated: Bool[np.ndarray, " texts"]


def warn_truncated(truncated: Bool[np.ndarray, " texts"], identity: ModelIdentity) -> None:
    """Warn of texts that exceed a model's token limit, with their number."""
    if count := int(truncated.sum()):
        warn_user(
            f"{count} of {len(truncated)} texts exceed the limit of {identity.limit} of {identity.name} "
            "and were truncated. Split long documents.",
            TruncationWarning,
        )


@dataclass(frozen=True, slots=True)
class Unread:
    """Part of some texts that a model without windows does not read.

    Attributes:
        limit: Tokens that it reads of a text; 0 if that is any number, or unknown.
        texts: Number of texts that it cuts.
        of: Number of all texts.
        share: Share of the tokens of all texts that is beyond its limit.
    """

    limit: int
    texts: int
    of: int
    share: float

    @property
    def is_much(self) -> bool:
        """True if more than 5 % of the tokens are not read."""
        return self.share > MOST_UNREAD


def unread_of(model: "Model", texts: Sequence[str]) -> Unread:
    """Return the part of texts that a model without windows does not read.

    Raises:
        CorpusError: A text is blank or holds a lone surrogate.
    """
    cut, limit = sum(cut_texts(model, texts)), model.identity.max_length
    if not cut:
        return Unread(limit, 0, len(texts), 0.0)
    read, there = (model.count_tokens(texts, windows=windows) for windows in (False, True))
    return Unread(limit, cut, len(texts), 1 - read / there)


def check_read(model: "Model", texts: Sequence[str], remedy: str) -> None:
    """Refuse texts of which a model that truncates would leave more than 5 % of the tokens unread.

    Args:
        model: Model that embeds them without windows.
        texts: Texts of one call.
        remedy: Setting that avoids it, for the message.

    Raises:
        CorpusError: A text is blank or holds a lone surrogate.
        TruncationError: More than 5 % of their tokens are beyond the model's limit.
    """
    found = unread_of(model, texts)
    if found.is_much:
        raise TruncationError(
            f"Expected texts within the limit of {found.limit} tokens of {model.identity.name}, found "
            f"{found.of} of which {found.share:.0%} would not be read, and so not be found. {remedy}"
        )


def cut_texts(model: "Model", texts: Sequence[str]) -> list[bool]:
    """Return True for each text of which a model without windows leaves tokens unread.

    Raises:
        CorpusError: A text is blank or holds a lone surrogate.
    """
    check_texts(texts)  # with the position of one that cannot be read
    limit = model.identity.max_length

    def is_cut(text: str) -> bool:
        read = model.count_tokens([text], windows=False)
        return read >= limit > 0 and model.count_tokens([text], windows=True) > read

    return [is_cut(text) for text in texts]


class Model(ABC):
    """A model of any family on one device: texts, siblings and a Context in, unit vectors out. Thread-safe.

    Attributes:
        identity: Properties that determine the vector space.
        runtime: "torch", "openvino" or "onnx"; "function" for a user's function.
        dtype: Dtype of the layers.
        device: Device of the computation, such as "cpu"; None if it is unknown.
        given_dtype: Dtype as it was given; None if it was chosen.
        given_runtime: Runtime as it was given; None if it was chosen.
        given_attention: Attention in torch as it was given.
        mini_batch_size: Texts at once, where none are named.
        folder: Folder of its files; None if it was not read from files.
        in_workers: True if workers of a pool can load the model by its name or folder.
        in_pickles: True if a pickle holds the model itself, as of a user's function.
        context_size: Context documents that a Context has to have, repeated ones included; None if any number will do.
        max_siblings: Siblings that are read with a document, at most; 0 if the model reads none.
        has_null: True if the model does without a corpus, in the null context.
        late_chunks: True if chunks can be read together, see `ContextualEmbedder.embed_chunks`.
        plain_vectors: Where the plain vectors of texts are kept; None if they are not kept.
    """

    identity: ModelIdentity
    runtime: str
    dtype: str
    device: str | None = None
    given_dtype: Dtype | None = None
    given_runtime: Runtime | None = None
    given_attention: Attention = AUTO
    mini_batch_size: int = 32
    folder: Path | None = None
    in_workers: bool = False
    in_pickles: bool = False
    context_size: int | None = None
    max_siblings: int = 0
    has_null: bool = True
    late_chunks: bool = False
    plain_vectors: PlainVectors | None = None

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.identity.dim

    @property
    def fixed(self) -> tuple[Sequence[str], Float32[np.ndarray, "fixed dim"]]:
        """Texts whose vectors every Context of the model holds, by which it is known again; none for most models."""
        return (), np.empty((0, self.identity.context_dim), np.float32)

    def known(self, context: Context) -> "Model":
        """Return the model under the identity that it has in a Context of an earlier run.

        Raises:
            ContextMismatchError: The Context was made by another model; here, if `prepare` does not compare them.
        """
        del context
        return self

    def with_plain_vectors(self, plain_vectors: PlainVectors | None) -> "Model":
        """Return the model with another place for plain vectors; as it is, if its vectors depend on their Context."""
        del plain_vectors
        return self

    def uncached(self) -> "Model":
        """Return the model as one that embeds every text, also those whose plain vectors are there already."""
        return self

    def keep(self, texts: Sequence[str], vectors: Float32[np.ndarray, "texts dim"], *, checked: int = CHECKED) -> None:
        """Keep plain vectors that are there already; see `ContextualEmbedder.keep`."""
        del texts, vectors, checked
        raise ModelError(
            'There is no place to keep vectors in. Name one: with_plain_vectors(PlainVectors("papers.sqlite")).'
        )

    @abstractmethod
    def first_stage(self, texts: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
        """Embed each text by itself, as a row of a Context.

        Raises:
            CorpusError: A text is blank or holds a lone surrogate.
        """

    @abstractmethod
    def prepare(self, context: Context) -> Any:
        """Compute the input of `embed` from a Context, once per Context.

        Raises:
            ContextError: The model needs another number of context documents, or has no null context.
            ContextMismatchError: The context was made by other weights, another tokenizer or other settings.
        """

    @abstractmethod
    def embed(
        self,
        texts: Sequence[str],
        role: int,
        prepared: Any,
        siblings: Sequence[Sequence[str]] | None,
        *,
        windows: bool,
        mini_batch_size: int,
        progress: bool = False,
    ) -> Embedded:
        """Embed texts.

        Args:
            texts: Texts.
            role: `QUERY` or `DOCUMENT`.
            prepared: Result of `prepare`.
            siblings: For each text the texts of its siblings, at most `max_siblings`; None where no text has any.
            windows: Read texts longer than the model's limit in windows; else they are cut.
            mini_batch_size: Texts per forward pass.
            progress: Show a bar on stderr.

        Raises:
            CorpusError: A text is blank, holds a lone surrogate or has no word that the model knows.
            ModelError: Siblings for a model that reads none; or a user's function returns other than vectors.
        """

    def embed_chunks(
        self, documents: Sequence[Sequence[str]], prepared: Any, sibling_rule: int, *, mini_batch_size: int
    ) -> Embedded:
        """Embed the chunks of documents in their order, read together; see `ContextualEmbedder.embed_chunks`.

        Raises:
            CorpusError: A chunk is blank or holds a lone surrogate, or a document has no chunk.
            MissingExtraError: torch is not installed.
            ModelError: The model cannot do so.
        """
        del documents, prepared, sibling_rule, mini_batch_size
        raise ModelError(
            f"{self.identity.name} cannot pool chunks of one text: only one-way models do, such as cde-mini. Give "
            "embed_documents the parents of the chunks."
        )

    @abstractmethod
    def count_tokens(self, texts: Sequence[str], *, windows: bool) -> int:
        """Count the tokens of all texts as they are read, prefixes and special tokens included."""
