"""CDEForMTEB: a contextual model as MTEB calls one, with the context of the task at hand."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs]
from jaxtyping import Float32
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models.model_meta import ModelMeta
from mteb.models.search_wrappers import SearchEncoderWrapper
from mteb.similarity_functions import dot_score, pairwise_dot_score
from mteb.types import EncodeKwargs, PromptType
from torch import Tensor

from cde_rag._validation import digest
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.corpus_contexts import context_size_for
from cde_rag.errors import ContextMissingError, ModelError
from cde_rag.models import CDEModel
from cde_rag.models.files.names import ModelName
from cde_rag.models.runtimes.stage_runner import Dtype
from lab.mteb.meta import model_meta
from lab.mteb.task_prefixes import SEARCHED, task_prefixes


class CDEForMTEB:
    """A contextual model for `mteb.evaluate`, which gets a context for each task, from that task's own texts.

    In retrieval and reranking MTEB shows the corpus before anything is embedded (`index`), and the context is sampled
    from it. Other tasks have no such moment: there the context comes from what they embed first, which are the
    training texts in classification and one side of the pairs in STS. It serves the task and subset until the next.

    A model with prefixes gets those of the task's type, and is loaded again where they change. A model with roles reads
    queries as queries and all else as documents. Blank texts, which some tasks have, get the zero vector: their score
    is 0.

    Args:
        model: A CDEModel, or what `CDEModel.from_pretrained` takes.
        context_size: Documents of a context; as many as the model expects, or 512, by default.
        context: "own": each task's texts; "null": the null context for all tasks; or texts that every context is
            sampled from, such as random training documents, whatever the task.
        seed: Random seed of the contexts' samples.
        device: For a model given by name; see CDEModel.
        dtype: For a model given by name; see CDEModel.

    Raises:
        ContextError: The model expects another number of context documents.
        ModelError: No such model.

    Source: paper §5.3 for a context per task, table 2 for random documents; the protocols are MTEB's
        `EncoderProtocol` and `SearchProtocol`.
    """

    def __init__(
        self,
        model: str | Path | CDEModel = "cde-mini",
        *,
        context_size: int | None = None,
        context: Literal["own", "null"] | Sequence[str] = "own",
        seed: int = 0,
        device: str | None = None,
        dtype: Dtype | None = None,
    ) -> None:
        self.model = (
            model
            if isinstance(model, CDEModel)
            else CDEModel.from_pretrained(model, device=device, dtype=dtype, runtime="torch")
        )
        self.context_size = context_size_for(self.model, context_size)
        self._given = context if isinstance(context, str) else tuple(context)
        self._meta = model_meta(self.model, context_size=self.context_size)  # of the model as given, whatever the task
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Forget the context; the next are sampled with another seed."""
        self.seed = seed
        self._embedder: ContextualEmbedder | None = None
        self._search: SearchEncoderWrapper | None = None
        self._fitted_for: tuple[str, str, str] | None = None

    @property
    def embedder(self) -> ContextualEmbedder:
        """Embedder of the current task.

        Raises:
            ContextMissingError: There has been no task yet.
        """
        if self._embedder is None:
            raise ContextMissingError("Expected a task's texts, found none yet: run mteb.evaluate(model, tasks).")
        return self._embedder

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """Model metadata for MTEB, with the seed."""
        settings = {**(self._meta.experiment_kwargs or {}), "seed": self.seed}
        if self._given != "own":  # whose results are kept under the settings that they always had
            texts = self._given
            settings["context"] = texts if isinstance(texts, str) else digest("\n".join(texts)).hex()[:16]
        return self._meta.model_copy(update={"experiment_kwargs": settings})

    def index(
        self,
        corpus: Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: EncodeKwargs,
        num_proc: int | None = None,
    ) -> None:
        """Make the context of a corpus that is to be searched; MTEB calls this first.

        Args:
            corpus: Rows with `id`, `text` and, in some corpora, `title`.
            task_metadata: Metadata of the task.
            hf_split: Split of the corpus.
            hf_subset: Subset of the task.
            encode_kwargs: For `encode`.
            num_proc: Processes that load data.
        """
        rows = cast("Iterable[Mapping[str, Any]]", corpus)
        texts = [f"{row['title']} {row['text']}" if row.get("title") else str(row["text"]) for row in rows]
        self._fit(texts, task_metadata, hf_subset)
        self._search = SearchEncoderWrapper(cast(Any, self))
        self._search.index(
            corpus,
            task_metadata=task_metadata,
            hf_split=hf_split,
            hf_subset=hf_subset,
            encode_kwargs=encode_kwargs,
            num_proc=num_proc,
        )

    def search(
        self,
        queries: Dataset,
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: EncodeKwargs,
        top_ranked: Mapping[str, list[str]] | None = None,
        num_proc: int | None = None,
    ) -> dict[str, dict[str, float]]:
        """Find the documents nearest to each query, in the corpus that was indexed; arguments as in `index`.

        Args:
            queries: Rows with `id` and `text`.
            task_metadata: Metadata of the task.
            hf_split: Split of the queries.
            hf_subset: Subset of the task.
            top_k: Documents of a query.
            encode_kwargs: For `encode`.
            top_ranked: For each query, the documents to choose from; None for all.
            num_proc: Processes that load data.

        Returns:
            For each query, its documents' scores.

        Raises:
            ContextMissingError: Nothing was indexed.
        """
        if self._search is None:
            raise ContextMissingError("Expected a corpus before queries, found none: call index(corpus, …) first.")
        return self._search.search(
            queries,
            task_metadata=task_metadata,
            hf_split=hf_split,
            hf_subset=hf_subset,
            top_k=top_k,
            encode_kwargs=encode_kwargs,
            top_ranked=top_ranked,
            num_proc=num_proc,
        )

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        batch_size: int = 32,
        show_progress_bar: bool = False,
    ) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts in the context of their task.

        Args:
            inputs: Batches, with their texts in `text`.
            task_metadata: Metadata of the task.
            hf_split: Split of the texts; the splits of a task share its context.
            hf_subset: Subset of the task.
            prompt_type: "query" for queries; anything else is read as documents.
            batch_size: Texts per forward pass.
            show_progress_bar: For documents.

        Returns:
            Unit norm, zero for blank texts.

        Raises:
            ContextMissingError: A corpus is to be searched that `index` has not seen.
        """
        del hf_split
        texts = [str(text) for batch in inputs for text in batch["text"]]
        if self._fitted_for != _place(task_metadata, hf_subset):
            if task_metadata.type in SEARCHED:
                raise ContextMissingError(
                    f"{task_metadata.name}: expected its corpus before its texts, found none. Give mteb.evaluate this "
                    "model itself, or call index(corpus, …) first."
                )
            self._fit(texts, task_metadata, hf_subset)
        self.embedder.mini_batch_size = batch_size
        vectors = np.zeros((len(texts), self.embedder.dim), dtype=np.float32)
        places = [place for place, text in enumerate(texts) if text.strip()]
        there = [texts[place] for place in places]
        if prompt_type == PromptType.query:
            vectors[places] = self.embedder.embed_queries(there)
        else:
            vectors[places] = self.embedder.embed_documents(there, progress=show_progress_bar)
        return vectors

    def similarity(
        self,
        embeddings1: Float32[np.ndarray, "some dim"] | Float32[Tensor, "some dim"],
        embeddings2: Float32[np.ndarray, "others dim"] | Float32[Tensor, "others dim"],
    ) -> Float32[Tensor, "some others"]:
        """Compute the dot product of each vector with each."""
        return dot_score(embeddings1, embeddings2)

    def similarity_pairwise(
        self,
        embeddings1: Float32[np.ndarray, "pairs dim"] | Float32[Tensor, "pairs dim"],
        embeddings2: Float32[np.ndarray, "pairs dim"] | Float32[Tensor, "pairs dim"],
    ) -> Float32[Tensor, " pairs"]:
        """Compute the dot product of each pair of vectors."""
        return torch.as_tensor(pairwise_dot_score(embeddings1, embeddings2))

    def _fit(self, texts: Sequence[str], task: TaskMetadata, subset: str) -> None:
        self.model = _with_prefixes(self.model, task_prefixes(task))
        if self._given == "null":
            self._embedder = ContextualEmbedder(self.model, Context.null(self.model))
        else:
            self._embedder = ContextualEmbedder.from_corpus(
                texts if self._given == "own" else self._given,
                model=self.model,
                context_size=self.context_size,
                seed=self.seed,
            )
        self._fitted_for = _place(task, subset)


def _place(task: TaskMetadata, subset: str) -> tuple[str, str, str]:
    """Return the key under which a context is kept: task, revision and subset."""
    return task.name, task.revision, subset


def _with_prefixes(model: CDEModel, prefixes: Mapping[str, str]) -> CDEModel:
    """Return the same model with these prefixes, if it reads any; ModelError if its files have changed."""
    if model.identity.roles != "prefix" or model.identity.prefixes == prefixes:
        return model
    name = replace(ModelName.parse(model.identity.name), query_prefix=None, document_prefix=None)
    again = CDEModel.from_pretrained(
        str(name), device=model.device, dtype=cast(Dtype, model.dtype), runtime="torch", prefixes=prefixes
    )
    tensors = zip(model.network.state_dict().values(), again.network.state_dict().values(), strict=True)
    if again.tokenizer.sha256 != model.tokenizer.sha256 or not all(torch.equal(one, other) for one, other in tensors):
        raise ModelError(f"{name} was written since it was loaded. Start again with the model as it is now.")
    return again
