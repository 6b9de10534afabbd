"""Rerankers by name: cross-encoders in a folder or on the hub, and rerankers that an API serves."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag._files import user_path
from cde_rag.errors import MissingExtraError, ModelError
from cde_rag.models.cross_encoder.checkpoint import EXAMPLE, CrossEncoderFiles, is_place
from cde_rag.models.cross_encoder.config import PairEncoder
from cde_rag.models.cross_encoder.graph import GraphCrossEncoder
from cde_rag.models.cross_encoder.network import TorchCrossEncoder
from cde_rag.models.plain.checkpoint import digest_of
from cde_rag.models.plain.corpus_map import unit
from cde_rag.models.plain.settings import OtherArchitectureError
from cde_rag.models.rerank_api import RerankEndpoint, is_served
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import Dtype
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.shared import Shared

CrossEncoderModel: TypeAlias = GraphCrossEncoder | TorchCrossEncoder


def named_reranker(
    name: str | Path, *, device: str | None = None, runtime: Runtime | None = None
) -> CrossEncoderModel | RerankEndpoint:
    """Load a reranker by its name; within a process those who name the same cross-encoder share it.

    Args:
        name: A folder or a hub id of a cross-encoder, such as "cross-encoder/ms-marco-MiniLM-L6-v2", with `@revision`
            if need be. "cohere:MODEL" and "jina:MODEL", whose key is the environment's CO_API_KEY or JINA_API_KEY. An
            address and a model such as "http://localhost:8000/v1/rerank#bge-reranker-base" of a server of their form;
            or an address alone, "http://localhost:8080/rerank", of a text-embeddings-inference; the key of an address,
            if it needs one, is the environment's CDE_RAG_RERANK_KEY.
        device: Device of the computation; by default CUDA if available, else the CPU.
        runtime: "torch", "openvino" or "onnx"; by default the fastest that is installed. Architectures other than
            BERT, RoBERTa, XLM-R and ModernBERT run in torch, by sentence-transformers.

    Returns:
        A function from pairs of a query and a text to their scores, float32, higher is better: those of
        `CrossEncoder.predict`, or of the API.

    Raises:
        MissingExtraError: The runtime, or the extra `hub`, is not installed.
        ModelError: There is no such model or key, it is no cross-encoder with one score, its files are damaged, or the
            runtime does not run it.
        TypeError: A device or runtime for a reranker that an API serves.
    """
    text = str(name)
    if is_served(text):
        if (device, runtime) != (None, None):
            raise TypeError(f"{text} runs elsewhere: leave device and runtime out.")
        return RerankEndpoint(text)
    if not text or not (user_path(text).is_dir() or is_place(text)):
        raise ModelError(
            f"Expected a folder of a cross-encoder, or a hub id of one such as {EXAMPLE}, or cohere:MODEL, jina:MODEL "
            f"or an address, found {text!r:.200}."
        )
    asked = runtime_choice.asked(runtime)
    found = CrossEncoderFiles.find(text)
    key = (found.files.name, *found.files.digests.items(), *found.files.written, device, asked, batch_threads())
    return _LOADED.get(key, partial(_load, found, device, asked))


def _load(found: CrossEncoderFiles, device: str | None, asked: Runtime | None) -> CrossEncoderModel:
    try:
        model = PairEncoder.read(found)
    except OtherArchitectureError as other:
        if asked in runtime_choice.WITHOUT_TORCH:
            raise ModelError(
                f"{found.files.name}: the runtime {asked!r} runs cross-encoders of BERT, RoBERTa, XLM-R and "
                f"ModernBERT, found {other}. Leave runtime out."
            ) from other
        return _in_torch(found, device, str(other))
    timings = partial(_timings, model, found)
    runtime, dtype = runtime_choice.choose(asked, timings, device=device, dtype="float32")
    if runtime == "torch":
        return TorchCrossEncoder(found.files, device=device, dtype=dtype)
    return GraphCrossEncoder(model, runtime, dtype or "float32")


def _in_torch(found: CrossEncoderFiles, device: str | None, other: str) -> TorchCrossEncoder:
    try:
        return TorchCrossEncoder(found.files, device=device, dtype=None)
    except MissingExtraError as error:
        raise MissingExtraError(f"{found.files.name} runs in torch alone, found {other}. {error}") from error


def _timings(model: PairEncoder, found: CrossEncoderFiles) -> Sequence[runtime_choice.Timing]:
    """Return the times of the runtimes on this machine, measured once and kept in the user's cache."""
    texts, question = runtime_choice.sample()

    def trial(runtime: str, dtype: Dtype) -> runtime_choice.Trial:
        scorer: CrossEncoderModel = (
            TorchCrossEncoder(found.files, device="cpu", dtype=dtype)
            if runtime == "torch"
            else GraphCrossEncoder(model, runtime, dtype)
        )
        pairs = [(question, text) for text in texts]
        return runtime_choice.Trial(runtime, dtype, partial(_angles, scorer, pairs), partial(scorer, pairs[:1]))

    files = found.files
    digest = digest_of(f"pairs {files.weights_sha256} {files.tokenizer_sha256}")
    return runtime_choice.timings(digest, files.name, trial)


def _angles(
    scorer: Callable[[Sequence[tuple[str, str]]], Float32[np.ndarray, " pairs"]], pairs: Sequence[tuple[str, str]]
) -> Float32[np.ndarray, "pairs 2"]:
    """Score pairs; as unit vectors, whose cosine is 1 where two runtimes agree."""
    scores = scorer(pairs)
    return unit(np.stack([scores, np.ones_like(scores)], axis=1))


_LOADED: Final = Shared[CrossEncoderModel]()
