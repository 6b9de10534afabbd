"""ContextualEmbedder: a model in one Context. Texts in, unit vectors out."""

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NoReturn, TypeAlias, cast

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag._validation import check_list, digest, named_keywords, named_keywords_with, unknown_attribute
from cde_rag.context.context import Context
from cde_rag.context.identity import ARITHMETIC
from cde_rag.context.sampling import Strategy
from cde_rag.context.siblings import sibling_texts
from cde_rag.embedders.corpus_contexts import contextual_identity, sampled
from cde_rag.embedders.pool import EmbedderSpec, Pool, embed_on
from cde_rag.embedders.protocol import Embedder, EmbedderOptions, old_options
from cde_rag.errors import ModelError, warn_of_old_name
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.models.model import CHECKED, Embedded, Model, warn_truncated
from cde_rag.models.named import named_model
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY

MINI_BATCH_SIZE = 32  # texts, where none is given
_MEANT: Final = {  # names of other libraries
    **dict.fromkeys(("encode", "embed", "embed_texts"), "embedder.embed_documents(texts)"),
    **dict.fromkeys(("encode_document", "encode_documents"), "embedder.embed_documents(texts)"),
    **dict.fromkeys(("embed_query", "encode_query", "encode_queries"), "embedder.embed_queries([query])"),
    **dict.fromkeys(("dimension", "get_sentence_embedding_dimension"), "embedder.dim"),
}
AnyModel: TypeAlias = "str | Path | Model | ContextualEmbedder"
"""A model, its name or folder, or an embedder of it, such as `PlainEmbedder(name)`."""


class ContextualEmbedder:
    """A model in one Context; all its embeddings are in one vector space, identified by `fingerprint`.

    Models of every family have this one embedder: those that read a context, and plain ones, in whose vectors a corpus
    and siblings come by arithmetic. The context is prepared once, in the constructor. Thread-safe.

    Args:
        model: A name (bundled, a folder, a hub id, or that of an API's model: `cde_rag.models.named.named_model`), a
            model such as a CDEModel, or an embedder of it.
        context: Made by the same weights. Texts longer than the model's window are cut or read in windows, as it
            specifies.
        options: Device, dtype, runtime, batch size and pool of workers.

    Raises:
        ContextMismatchError: The context was made by other weights.
        ModelError: No such model.
        TypeError: A device, dtype or runtime for a model that is loaded.
    """

    @old_options
    @named_keywords_with("ContextualEmbedder.from_corpus(texts) makes a context, and the embedder.")
    def __init__(
        self,
        model: AnyModel,
        context: Context,
        *,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> None:
        own = model if isinstance(model, ContextualEmbedder) else None
        self.pool = own.pool if own is not None and options.pool is None else options.pool
        self.model = as_model(model, options).known(context)
        self.mini_batch_size = options.mini_batch_size or (own or self.model).mini_batch_size
        self.context = context
        self._prepared = self.model.prepare(context)

    @classmethod
    @old_options
    @named_keywords
    def from_corpus(
        cls,
        texts: Iterable[str],
        *,
        model: AnyModel = "cde-mini",
        context_size: int | None = None,
        seed: int = 0,
        strategy: Strategy | Literal["strata"] = "random",
        strata: Iterable[str] | None = None,
        source: str = "all",
        windows: bool = False,
        options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
    ) -> "ContextualEmbedder":
        """Sample the corpus, run the first stage once, and bind the model to the resulting Context.

        Args:
            texts: The documents as they will be embedded, in any order; read once, needs memory for the sample only.
            model: As in the class. Vectors of a plain model are mapped by the corpus; see
                `ArithmeticEmbedder.from_corpus` for other arithmetic.
            context_size: Number of context documents (J): by default as many as the model expects, or 512 if it accepts
                any number. A smaller corpus is used completely, and repeated if the model expects more.
            seed: Random seed of the sample.
            strategy: "random" (paper §4.2), "clusters" (one document near each of J centroids) or "strata".
            strata: For "strata": each text's stratum; the sample is proportional.
            source: What `texts` are, for information: "all", or such as "first_slice" of a corpus.
            windows: Read texts longer than the model's window in windows, and average their vectors; by default they
                are cut. Windows do not surely find more (lab/pages/windows.md): split long texts if you can.
                A plain model is made with its windows.
            options: As in the class.

        Raises:
            ContextError: The model expects another number of context documents.
            CorpusError: No text that is not blank, or one with a lone surrogate.
            TypeError: `texts` is a single str; or windows, device, dtype or runtime for a model that has its own.
            ValueError: Another strategy, `strata` without its strategy or the other way round, or `context_size` < 1.

        Warns:
            CDEWarning: A plain model refuses documents of the sample, which are left out.
            SmallContextWarning: The corpus has fewer than 64 documents, and fewer than `context_size`.
        """
        check_list(texts, call="from_corpus")
        loaded = as_model(model, options)
        identity = contextual_identity(loaded, windows=windows or None)
        context = sampled(
            loaded, identity, texts, context_size, seed=seed, strategy=strategy, strata=strata, source=source
        )
        found = model if isinstance(model, ContextualEmbedder) else loaded
        return cls(found, context, options=options.of_loaded)

    def __repr__(self) -> str:
        return f"ContextualEmbedder({self.context!r})"

    if not TYPE_CHECKING:  # a checker knows the names, and reports the others

        def __getattr__(self, name: str) -> NoReturn:
            raise unknown_attribute(self, name, _MEANT)

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        return self.model.dim

    @property
    def fingerprint(self) -> str:
        """Names the vector space, 64 hex digits."""
        return self.context.fingerprint

    @property
    def windows(self) -> bool:
        """True if texts longer than the model's window are read in windows; else they are cut."""
        return self.context.identity.windows

    @property
    def device(self) -> str | None:
        """Device of the model, such as "cpu"; None if it is unknown."""
        return self.model.device

    @property
    def runtime(self) -> str:
        """Runtime of the model: "torch", "openvino" or "onnx"; "function" for a user's function."""
        return self.model.runtime

    @property
    def dtype(self) -> str:
        """Dtype of the model's layers."""
        return self.model.dtype

    @property
    def options(self) -> EmbedderOptions:
        """Device, dtype, runtime and batch size, for the embedder that follows this one."""
        return EmbedderOptions(
            device=self.device,
            dtype=self.model.given_dtype,
            runtime=self.model.given_runtime,
            mini_batch_size=self.mini_batch_size,
            pool=self.pool,
        )

    @property
    def max_siblings(self) -> int:
        """Siblings that are read with a document, at most; 0 if none are, as of a plain model without their weight."""
        identity = self.context.identity
        return 0 if identity.is_plain and not identity.sibling_weight else self.model.max_siblings

    @property
    def plain_vectors(self) -> PlainVectors | None:
        """Cache of plain vectors; None if there is none, as of models that read a context."""
        return self.model.plain_vectors

    @classmethod
    def from_spec(cls, spec: EmbedderSpec, device: str | None = None) -> "ContextualEmbedder":
        """Load the embedder of a spec, in another process or on another machine.

        Args:
            spec: Description of the embedder.
            device: Such as "cpu" or "cuda"; None: CUDA where there is one.

        Raises:
            ContextMismatchError: The model of this name has other weights here.
            ModelError: The model is not here.
        """
        model = spec.folder if spec.folder and Path(spec.folder).is_dir() else spec.model
        try:
            return cls(
                model,
                Context.from_bytes(spec.context, where="The context of the embedder"),
                options=EmbedderOptions(
                    device=device,
                    dtype=spec.dtype,
                    runtime=spec.runtime,
                    attn_implementation=spec.attention,
                    mini_batch_size=spec.mini_batch_size,
                ),
            )
        except ModelError as error:
            raise ModelError(
                f"A worker needs the model {spec.model!r} and does not have it. {error} Install its package on every "
                "machine, or put its folder at the same path on each."
            ) from error

    def __reduce__(self) -> "tuple[Callable[..., ContextualEmbedder], tuple[object, ...]]":
        """Describe the embedder for `multiprocessing`: a worker loads the model itself, and has no pool.

        Raises:
            ModelError: The model is a plain one that is no function.
        """
        if self.model.in_workers:
            return type(self).from_spec, (EmbedderSpec.of(self),)
        if self.model.in_pickles:
            return _unpickled, (self.model, self.context, self.mini_batch_size)
        raise ModelError(
            f"{self.model.identity.name} is a plain model, which is not sent to other processes. Make the embedder in "
            "the process that uses it."
        )

    def __copy__(self) -> "ContextualEmbedder":
        """Return a copy that shares the prepared context, which takes time to prepare anew."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> "ContextualEmbedder":
        """Return the embedder itself: model and context do not change."""
        return self

    def with_context(self, context: Context) -> "ContextualEmbedder":
        """Return an embedder of the same model in another Context.

        Raises:
            ContextMismatchError: The Context was made by other weights.
        """
        return ContextualEmbedder(self, context)

    def with_plain_vectors(self, plain_vectors: PlainVectors | None) -> "ContextualEmbedder":
        """Return this embedder with another place for plain vectors; None: without.

        From them vectors with other siblings or in another Context are made without the model. A collection of a plain
        model under arithmetic keeps them in its store's folder. On a Qdrant server there is none: there the model
        embeds siblings again, unless a file is named, such as
        `collection.embedder = collection.embedder.with_plain_vectors(PlainVectors("papers.sqlite"))`.
        """
        other = copy(self)
        other.model = self.model.with_plain_vectors(plain_vectors)
        return other

    def with_pool(self, pool: Pool | None) -> "ContextualEmbedder":
        """Return this embedder with a pool of workers; None: without."""
        other = copy(self)
        other.pool = pool
        return other

    def rebound(self, context: Context) -> "ContextualEmbedder":
        """Deprecated: `with_context`."""
        warn_of_old_name("embedder.rebound(context)", "embedder.with_context(context)")
        return self.with_context(context)

    def keeping(self, vectors: PlainVectors | None) -> "ContextualEmbedder":
        """Deprecated: `with_plain_vectors`."""
        warn_of_old_name("embedder.keeping(vectors)", "embedder.with_plain_vectors(vectors)")
        return self.with_plain_vectors(vectors)

    def on(self, pool: Pool | None) -> "ContextualEmbedder":
        """Deprecated: `with_pool`."""
        warn_of_old_name("embedder.on(pool)", "embedder.with_pool(pool)")
        return self.with_pool(pool)

    @property
    def vectors(self) -> PlainVectors | None:
        """Deprecated: `plain_vectors`."""
        warn_of_old_name("embedder.vectors", "embedder.plain_vectors")
        return self.plain_vectors

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of all texts as they are read, prefixes and special tokens included."""
        return self.model.count_tokens(texts, windows=self.windows)

    def embed_documents(
        self, texts: Sequence[str], *, parents: Sequence[str | None] | None = None, progress: bool = False
    ) -> Float32[np.ndarray, "documents dim"]:
        """Embed texts that are to be found.

        Args:
            texts: Documents.
            parents: The longer document that each text was cut from (None: none); texts of the same parent in this call
                are each other's siblings, in the order given.
            progress: Show a bar on stderr.

        Returns:
            Unit norm; row i belongs to `texts[i]`.

        Raises:
            CorpusError: A text is blank, holds a lone surrogate (with its position) or has no word that the model
                knows, or parents of another length.
            ModelError: Parents, where `max_siblings` is 0; or a user's function returns other than one finite vector
                for each text.
            TypeError: `texts` is a single str.

        Warns:
            TruncationWarning: Texts exceed the model's token limit, with their number.
        """
        check_list(texts, call="embed_documents")
        if parents is None:
            siblings = None
        elif not self.max_siblings:
            raise self._reads_no_siblings()
        else:
            siblings = sibling_texts(parents, texts, self.max_siblings, rule=self.context.manifest.sibling_rule)
        embedded = self.embed_passages(texts, siblings, progress=progress)
        warn_truncated(embedded.truncated, self.model.identity)
        return embedded.vectors

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search. Returns, raises and warns like `embed_documents`."""
        check_list(texts, call="embed_queries")
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "queries": len(texts)}):
            embedded = self.model.embed(
                texts, QUERY, self._prepared, None, windows=self.windows, mini_batch_size=self.mini_batch_size
            )
        warn_truncated(embedded.truncated, self.model.identity)
        return embedded.vectors

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents, each given exactly these siblings; for callers that keep track of parents themselves.

        Args:
            texts: Documents.
            siblings: For each text the texts of its siblings, at most `max_siblings`: first the parent's first passage,
                which counts most in some models, then the others in any order; None where no text has any.
            progress: Show a bar on stderr.

        Raises:
            CorpusError: As `embed_documents`.
            ModelError: A text has siblings, and the model is a plain or a two-way one.
            PoolError: The workers of the pool ended again and again, or are stuck.
        """
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "documents": len(texts)}):
            if self.pool is not None and self.model.in_workers and len(texts) > self.mini_batch_size:
                return embed_on(self.pool, self, texts, siblings)
            return self.model.embed(
                texts,
                DOCUMENT,
                self._prepared,
                siblings,
                windows=self.windows,
                mini_batch_size=self.mini_batch_size,
                progress=progress,
            )

    def keep(self, texts: Sequence[str], vectors: Float32[np.ndarray, "texts dim"], *, checked: int = CHECKED) -> None:
        """Keep plain vectors that are there already, such as those of an index, so that no model embeds these texts.

        Args:
            texts: Documents, as the model would be given them.
            vectors: Their plain vectors, of any length but zero; row i belongs to `texts[i]`.
            checked: Texts that are embedded and compared with the vectors given.

        Raises:
            ContextMismatchError: The vectors are not those that the model makes of the texts.
            ModelError: There is no place for plain vectors, or they have another shape.
        """
        self.model.keep(texts, vectors, checked=checked)

    def forget(self, texts: Sequence[str]) -> None:
        """Delete the plain vectors of texts that are deleted or replaced, where they are kept.

        Raises:
            StoreError: Their file cannot be written.
        """
        if self.plain_vectors is not None:
            self.plain_vectors.forget([digest(text) for text in texts])

    def embed_chunks(self, documents: Sequence[Sequence[str]]) -> list[Float32[np.ndarray, "chunks dim"]]:
        """Embed the chunks of documents by late chunking: read together, each pooled over its own tokens.

        Consecutive chunks share a window of the model's token limit; each has its document's other chunks as siblings,
        as in `embed_documents` with parents. A chunk alone in its document equals `embed_documents` of it. The bundled
        models were not trained to be read in this way, and find less than with parents in `embed_documents`; see
        lab/pages/late-chunking.md. They are read in torch, which a model in another runtime loads for it.

        Args:
            documents: Chunks of each document, in its order.

        Returns:
            For each document the vectors of its chunks, unit norm.

        Raises:
            CorpusError: A chunk is blank or holds a lone surrogate, or a document has no chunk.
            MissingExtraError: torch is not installed.
            ModelError: The model is no one-way model.
            TypeError: A document is a single str.

        Warns:
            TruncationWarning: Chunks alone exceed the model's token limit, with their number.
        """
        for document in documents:
            check_list(document, call="embed_chunks")
        count = sum(len(document) for document in documents)
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "documents": count}):
            embedded = self.model.embed_chunks(
                documents, self._prepared, self.context.manifest.sibling_rule, mini_batch_size=self.mini_batch_size
            )
        warn_truncated(embedded.truncated, self.model.identity)
        ends = np.cumsum([len(document) for document in documents])
        return np.split(embedded.vectors, ends[:-1]) if documents else []

    def _reads_no_siblings(self) -> ModelError:
        identity = self.context.identity
        if identity.attention == ARITHMETIC:
            return ModelError(
                "Siblings have a weight of 0 in this context, found parents. Leave parents out, or make the context "
                "with ArithmeticEmbedder.from_corpus(texts, model=embedder, weight=0.3)."
            )
        kind = "it is a plain model" if identity.is_plain else "only one-way models do"
        return ModelError(f"{self.model.identity.name} reads no siblings: {kind}. Leave parents out.")


def _unpickled(model: Model, context: Context, mini_batch_size: int) -> ContextualEmbedder:
    return ContextualEmbedder(model, context, options=EmbedderOptions(mini_batch_size=mini_batch_size))


def contextual(embedder: Embedder) -> ContextualEmbedder | None:
    """Return an embedder as a ContextualEmbedder; None for an embedder of another class."""
    return embedder if isinstance(embedder, ContextualEmbedder) else None


def as_model(model: AnyModel, options: EmbedderOptions = EmbedderOptions()) -> Model:  # noqa: B008 (frozen)
    """Load a model given by name, with the options of loading; return one that is there.

    Raises like `from_pretrained`, and TypeError for a loaded model with such an option, or for another object.
    """
    if isinstance(model, str | Path):
        return named_model(
            model,
            device=options.device,
            dtype=options.dtype,
            runtime=options.runtime,
            attn_implementation=options.attn_implementation,
        )
    found = model.model if isinstance(model, ContextualEmbedder) else model
    if not isinstance(cast(object, found), Model):
        raise TypeError(
            f"Expected a model's name or folder, a CDEModel or an embedder, found {model!r:.80}. For a function of "
            'your own: FunctionEmbedder(function, name="my-model-1").'
        )
    if options.of_loading != EmbedderOptions().of_loading:
        raise TypeError(
            "device, dtype, runtime and attn_implementation are chosen where a model is loaded: "
            "CDEModel.from_pretrained(name, dtype=…)."
        )
    return found
