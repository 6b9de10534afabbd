"""ContextualEmbedder: a model bound to one Context. Texts in, unit vectors out."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast, overload

import numpy as np
from jaxtyping import Float32

from cde_rag._telemetry import operation, short
from cde_rag._validation import check_list, check_positive
from cde_rag.context.context import Context
from cde_rag.context.generic_documents import repeated
from cde_rag.context.sampling import Sample, sample_clusters, sample_random, sample_strata, warn_small_context
from cde_rag.context.siblings import sibling_texts
from cde_rag.embedders.arithmetic import ArithmeticEmbedder
from cde_rag.embedders.function import FunctionEmbedder
from cde_rag.embedders.pool import EmbedderSpec, Pool, embed_on
from cde_rag.embedders.protocol import Embedded, EmbedderOptions, warn_truncated
from cde_rag.embedders.sentence_transformer import PlainEmbedder
from cde_rag.embedders.token_batches import TokenBatches, blocks_of
from cde_rag.errors import ContextError, ModelError, require
from cde_rag.model import CDEModel
from cde_rag.model.roles import DOCUMENT, QUERY

ANY_CONTEXT_SIZE = 512  # documents, where the model has no opinion


class ContextualEmbedder:
    """A model bound to one Context; all its embeddings are in one vector space, identified by `fingerprint`.

    The context is prepared once, in the constructor. Thread-safe.

    Args:
        model: A CDEModel, or what `CDEModel.from_pretrained` takes.
        context: Made by the same weights. Texts longer than the model's window are cut or read in windows, as it
            specifies.
        device: For a model given by name; see CDEModel.
        dtype: For a model given by name; see CDEModel.
        runtime: For a model given by name; see `CDEModel.from_pretrained`.
        mini_batch_size: Texts per forward pass; lower it when memory runs out.
        pool: Worker processes for the passages of long calls, such as `ProcessPool(4)`; queries stay in this process.

    Raises:
        ContextMismatchError: The context was made by other weights.
        ModelError: No such model.
        ValueError: `mini_batch_size` is below 1.
    """

    def __init__(
        self,
        model: str | Path | CDEModel,
        context: Context,
        *,
        device: str | None = None,
        dtype: str | None = None,
        runtime: str | None = None,
        mini_batch_size: int = 32,
        pool: Pool | None = None,
    ) -> None:
        check_positive(mini_batch_size, "mini_batch_size")
        self.model = as_model(model, device, dtype, runtime)
        self.context = context
        self.mini_batch_size = mini_batch_size
        self.pool = pool
        self._prepared = self.model.prepare(context.reading(windows=False))

    @overload
    @classmethod
    def from_corpus(cls, texts: Iterable[str], *, model: PlainEmbedder | FunctionEmbedder) -> ArithmeticEmbedder: ...

    @overload
    @classmethod
    def from_corpus(
        cls,
        texts: Iterable[str],
        *,
        model: str | Path | CDEModel = "cde-mini",
        context_size: int | None = None,
        seed: int = 0,
        strategy: str = "random",
        strata: Iterable[str] | None = None,
        source: str = "all",
        windows: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        runtime: str | None = None,
        mini_batch_size: int = 32,
        pool: Pool | None = None,
    ) -> "ContextualEmbedder": ...

    @classmethod
    def from_corpus(
        cls,
        texts: Iterable[str],
        *,
        model: str | Path | CDEModel | PlainEmbedder | FunctionEmbedder = "cde-mini",
        context_size: int | None = None,
        seed: int = 0,
        strategy: str = "random",
        strata: Iterable[str] | None = None,
        source: str = "all",
        windows: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        runtime: str | None = None,
        mini_batch_size: int = 32,
        pool: Pool | None = None,
    ) -> "ContextualEmbedder | ArithmeticEmbedder":
        """Sample the corpus, run the first stage once, and bind the model to the resulting Context.

        Args:
            texts: The documents as they will be embedded, in any order; read once, needs memory for the sample only.
            model: As in the class; or a PlainEmbedder or FunctionEmbedder, for an ArithmeticEmbedder of it, which has
                arguments of its own in `ArithmeticEmbedder.from_corpus`.
            context_size: Number of context documents (J): by default as many as the model expects, or 512 if it accepts
                any number. A smaller corpus is used completely, and repeated if the model expects more.
            seed: Random seed of the sample.
            strategy: "random" (paper §4.2), "clusters" (one document near each of J centroids) or "strata".
            strata: For "strata": each text's stratum; the sample is proportional.
            source: What `texts` are, for information: "all", or such as "first_slice" of a corpus.
            windows: Read texts longer than the model's window in windows, and average their vectors; by default they
                are cut. Windows do not surely find more (lab/pages/windows.md): split long texts if you can.
            device: As in the class.
            dtype: As in the class.
            runtime: As in the class.
            mini_batch_size: As in the class.
            pool: As in the class.

        Raises:
            ContextError: The model expects another number of context documents.
            CorpusError: No text that is not blank, or one with a lone surrogate.
            TypeError: `texts` is a single str; or a plain embedder comes with other arguments.
            ValueError: Another strategy, `strata` without its strategy or the other way round, or `context_size` or
                `mini_batch_size` < 1.

        Warns:
            SmallContextWarning: The corpus has fewer than 64 documents, and fewer than `context_size`.
        """
        check_list(texts, call="from_corpus")
        check_positive(mini_batch_size, "mini_batch_size")
        if isinstance(model, PlainEmbedder | FunctionEmbedder):
            given = {
                "context_size": context_size,
                "seed": seed,
                "strategy": strategy,
                "strata": strata,
                "source": source,
                "windows": windows,
                "device": device,
                "dtype": dtype,
                "runtime": runtime,
                "mini_batch_size": mini_batch_size,
                "pool": pool,
            }
            defaults = inspect.signature(cls.from_corpus).parameters
            if others := [name for name, value in given.items() if value != defaults[name].default]:
                raise TypeError(
                    f"{model!r} has its own device, dtype, windows and batch size: leave out {', '.join(others)}, or "
                    "give them to ArithmeticEmbedder.from_corpus."
                )
            return ArithmeticEmbedder.from_corpus(texts, model=model)
        if (strategy == "strata") != (strata is not None):
            raise ValueError(f"strata and strategy='strata' come together; found strategy={strategy!r}.")
        loaded = as_model(model, device, dtype, runtime)
        context_size = context_size_for(loaded, context_size)
        if strategy == "random":
            sample = sample_random(texts, context_size, seed=seed)
        elif strategy == "clusters":
            sample = sample_clusters(texts, context_size, seed=seed, embed=lambda some: _unit(loaded.first_stage(some)))
        elif strata is not None:
            sample = sample_strata(texts, strata, context_size, seed=seed)
        else:
            raise ValueError(f"Expected strategy 'random', 'clusters' or 'strata', found {strategy!r}.")
        context = fit(loaded, sample, strategy=strategy, seed=seed, source=source).reading(windows=windows)
        warn_small_context(context.size, context_size)
        return cls(loaded, context, mini_batch_size=mini_batch_size, pool=pool)

    def __repr__(self) -> str:
        return f"ContextualEmbedder({self.context!r})"

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
    def device(self) -> str:
        """Device of the model, such as "cpu"."""
        return self.model.device

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
        """Siblings that are read with a document, at most; 0 for two-way models, which read none."""
        return self.model.config.max_siblings

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
                device=device,
                dtype=spec.dtype,
                runtime=spec.runtime,
                mini_batch_size=spec.mini_batch_size,
            )
        except ModelError as error:
            raise ModelError(
                f"A worker needs the model {spec.model!r} and does not have it. {error} Install its package on every "
                "machine, or put its folder at the same path on each."
            ) from error

    def __reduce__(self) -> "tuple[Callable[[EmbedderSpec], ContextualEmbedder], tuple[EmbedderSpec]]":
        """Describe the embedder for `multiprocessing`: a worker loads the model itself, and has no pool."""
        return type(self).from_spec, (EmbedderSpec.of(self),)

    def __deepcopy__(self, memo: dict[int, object]) -> "ContextualEmbedder":
        """Return the embedder itself: model and context do not change."""
        return self

    def rebound(self, context: Context) -> "ContextualEmbedder":
        """Bind the same model to another Context.

        Raises:
            ContextMismatchError: The Context was made by other weights.
        """
        return ContextualEmbedder(self.model, context, mini_batch_size=self.mini_batch_size, pool=self.pool)

    def on(self, pool: Pool | None) -> "ContextualEmbedder":
        """Return this embedder with a pool of workers; None: without."""
        return ContextualEmbedder(self.model, self.context, mini_batch_size=self.mini_batch_size, pool=pool)

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Count the tokens of all texts as they are read, prefixes and special tokens included."""
        blocks = blocks_of(self.model, texts, self.model.tokenize(texts), DOCUMENT, windows=self.windows)
        return sum(len(row.ids) for block in blocks for _, row in block)

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
            CorpusError: A text is blank or holds a lone surrogate (with its position), or parents of another length.
            ModelError: Parents for a two-way model, which reads no siblings.
            TypeError: `texts` is a single str.

        Warns:
            TruncationWarning: Texts exceed the model's token limit, with their number.
        """
        check_list(texts, call="embed_documents")
        if parents is None:
            siblings = None
        elif not self.max_siblings:
            raise ModelError(f"{self.model.config.name} reads no siblings: only one-way models do. Leave parents out.")
        else:
            siblings = sibling_texts(parents, texts, self.max_siblings, rule=self.context.manifest.sibling_rule)
        embedded = self.embed_passages(texts, siblings, progress=progress)
        warn_truncated(embedded.truncated, self.model.identity)
        return embedded.vectors

    def embed_queries(self, texts: Sequence[str]) -> Float32[np.ndarray, "queries dim"]:
        """Embed texts that search. Returns, raises and warns like `embed_documents`."""
        check_list(texts, call="embed_queries")
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "queries": len(texts)}):
            batches = TokenBatches(self.model, texts, QUERY, None, size=self.mini_batch_size, windows=self.windows)
            for batch in batches:
                batch.vectors = self.model.stages.embed(batch.rows, QUERY, self._prepared, None, None)
        warn_truncated(batches.embedded.truncated, self.model.identity)
        return batches.embedded.vectors

    def embed_passages(
        self, texts: Sequence[str], siblings: Sequence[Sequence[str]] | None, *, progress: bool = False
    ) -> Embedded:
        """Embed documents, each given exactly these siblings; for callers that keep track of parents themselves.

        Args:
            texts: Documents.
            siblings: For each text the texts of its siblings, at most `model.config.max_siblings`: first the parent's
                first passage, which counts most in some models, then the others in any order; None where no text has
                any.
            progress: Show a bar on stderr.

        Raises:
            CorpusError: As `embed_documents`.
            PoolError: The workers of the pool ended again and again, or are stuck.
        """
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "documents": len(texts)}):
            if self.pool is not None and len(texts) > self.mini_batch_size:
                return embed_on(self.pool, self, texts, siblings)
            size, windows = self.mini_batch_size, self.windows
            batches = TokenBatches(self.model, texts, DOCUMENT, siblings, size=size, windows=windows, progress=progress)
            for batch in batches:
                batch.vectors = self.model.stages.embed(
                    batch.rows, DOCUMENT, self._prepared, batch.siblings, batch.sibling_mask
                )
            return batches.embedded

    def embed_chunks(self, documents: Sequence[Sequence[str]]) -> list[Float32[np.ndarray, "chunks dim"]]:
        """Embed the chunks of documents by late chunking: read together, each pooled over its own tokens.

        Consecutive chunks share a window of the model's token limit; each has its document's other chunks as siblings,
        as in `embed_documents` with parents. A chunk alone in its document equals `embed_documents` of it. The bundled
        models were not trained to be read in this way, and find less than with parents in `embed_documents`; see
        lab/pages/late-chunking.md.

        Args:
            documents: Chunks of each document, in its order.

        Returns:
            For each document the vectors of its chunks, unit norm.

        Raises:
            CorpusError: A chunk is blank or holds a lone surrogate, or a document has no chunk.
            MissingExtraError: torch is not installed.
            ModelError: The model is no one-way model, or runs without torch.
            TypeError: A document is a single str.

        Warns:
            TruncationWarning: Chunks alone exceed the model's token limit, with their number.
        """
        for document in documents:
            check_list(document, call="embed_chunks")
        require("torch", "torch")
        from cde_rag.embedders.late_chunking import LateChunking

        texts = [chunk for document in documents for chunk in document]
        with operation("cde_rag.embed", {"fingerprint": short(self.fingerprint), "documents": len(texts)}):
            embedded = LateChunking(self.model, self._prepared, self.context.manifest.sibling_rule)(
                documents, self.mini_batch_size
            )
        warn_truncated(embedded.truncated, self.model.identity)
        ends = np.cumsum([len(document) for document in documents])
        return np.split(embedded.vectors, ends[:-1]) if documents else []


def fit(model: CDEModel, sample: Sample, *, strategy: str, seed: int, source: str = "all") -> Context:
    """Run the first stage over a sample, repeated where the model expects more, and make the Context of it."""
    documents = repeated(sample.documents, model.context_size or 1)
    places = {text: place for place, text in enumerate(dict.fromkeys(documents))}
    vectors = model.first_stage(list(places))
    return Context.create(
        model.identity,
        documents,
        vectors[[places[text] for text in documents]],
        sampling=strategy,
        seed=seed,
        documents_seen=sample.documents_seen,
        source=source,
    )


def _unit(vectors: Float32[np.ndarray, "texts dim"]) -> Float32[np.ndarray, "texts dim"]:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors if np.allclose(norms, 1, atol=1e-5) else vectors / norms  # what has norm 1 stays, to the bit


def context_size_for(model: CDEModel, asked: int | None) -> int:
    """Return the number of context documents; ContextError if the model takes another number than requested."""
    expected = model.context_size
    if expected is None:
        return ANY_CONTEXT_SIZE if asked is None else asked
    if asked not in (None, expected):
        raise ContextError(
            f"{model.config.name} expects {expected} context documents, found context_size={asked}. Give "
            f"context_size={expected}; for fewer load the model with CDEModel.from_pretrained(name, context_size=…)."
        )
    return expected


def as_model(
    model: str | Path | CDEModel, device: str | None = None, dtype: str | None = None, runtime: str | None = None
) -> CDEModel:
    """Load a model given by name.

    Raises like `from_pretrained`, and TypeError for a loaded model with one of the others, or for another object.
    """
    if not isinstance(cast(object, model), str | Path | CDEModel):
        raise TypeError(
            f"Expected a model's name or folder, or a CDEModel, found {model!r:.80}. For an embedder of your own: "
            'PlainEmbedder("a-sentence-transformers-model") or FunctionEmbedder(function, name="my-model-1").'
        )
    if not isinstance(model, CDEModel):
        return CDEModel.shared(model, device=device, dtype=dtype, runtime=runtime)
    if (device, dtype, runtime) != (None, None, None):
        raise TypeError(
            "device, dtype and runtime are chosen where a model is loaded: CDEModel.from_pretrained(name, dtype=…)."
        )
    return model
