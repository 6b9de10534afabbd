"""Loading of sentence-transformers models in the runtime that is given, or the fastest one on this machine."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from jaxtyping import Float32

from cde_rag.context.identity import ModelIdentity
from cde_rag.errors import ModelError
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.config import BertEncoder
from cde_rag.models.plain.corpus_map import unit
from cde_rag.models.plain.graph import GraphTextModel
from cde_rag.models.plain.network import TorchTextModel
from cde_rag.models.plain.text_model import OtherArchitectureError, ReadText, TextModel
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.stage_runner import DTYPES
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.shared import Shared


def load(
    name: str,
    *,
    max_length: int | None,
    prefixes: Mapping[str, str] | None,
    device: str | None,
    dtype: str | None,
    runtime: str | None,
) -> tuple[TextModel, ModelIdentity]:
    """Load a SentenceTransformer and compute its identity; its files are hashed before they are read.

    Within a process the embedders of a model share it.

    Args:
        name: A folder or a hub id, with `@revision` if need be.
        max_length: Maximum tokens of a text; by default the model's own.
        prefixes: For "query" and "document"; by default the model's own prompts.
        device: Such as "cpu".
        dtype: One of `DTYPES`; by default the fastest, as sentence-transformers loads it, or float32 in a runtime that
            is named: bfloat16 shares the vector space of some models only.
        runtime: "torch", "openvino" or "onnx"; None: that of the environment's CDE_RAG_RUNTIME, or the fastest.

    Raises:
        MissingExtraError: The runtime is not installed; torch needs the extra `interop`.
        ModelError: There is no such model; it is no SentenceTransformer, lacks safetensors, brings its own code, needs
            files of another folder, or reads fewer tokens; or prefixes for other roles, another dtype, or a runtime
            that does not run it.
    """
    if prefixes is not None and set(prefixes) != {"query", "document"}:
        raise ModelError(f"Expected prefixes for 'query' and 'document', found {sorted(prefixes)}.")
    if dtype is not None and dtype not in DTYPES:
        raise ModelError(f"Expected dtype {', '.join(DTYPES)}, found {dtype!r}.")
    asked, files = runtime_choice.asked(runtime), ModelFiles.find(name)
    source = (files.name, tuple(files.digests.items()), tuple(files.written), max_length, batch_threads())
    encoder = None if asked == "torch" else _encoder(files, runtime)
    if encoder is not None:
        identity = files.identity(
            prompts=encoder.prompts,
            prefixes=prefixes,
            max_length=encoder.config.max_length if max_length is None else max_length,
            dim=encoder.config.dim,
        )
        given = dtype if asked is None else dtype or "float32"
        asked, dtype = runtime_choice.choose(asked, lambda: timings(encoder, identity), device=device, dtype=given)
        if asked != "torch":
            chosen, digest = (asked, dtype or "float32"), identity.weights_sha256
            graph = _GRAPHS.get(
                (source, chosen), lambda: GraphTextModel(encoder, digest, *chosen, max_length=max_length)
            )
            return graph, identity
    model = _NETWORKS.get(
        (source, device, dtype), lambda: TorchTextModel(files, max_length=max_length, device=device, dtype=dtype)
    )
    return model, files.identity(
        prompts=model.model.prompts,
        prefixes=prefixes,
        max_length=model.max_length,
        dim=model.model.get_embedding_dimension(),
    )


def timings(encoder: BertEncoder, identity: ModelIdentity) -> Sequence[runtime_choice.Timing]:
    """Return the times of a model's runtimes on this machine, measured once and kept in the user's cache.

    Args:
        encoder: The model.
        identity: Its identity.
    """
    digest = hashlib.sha256((identity.weights_sha256 + identity.tokenizer_sha256).encode()).hexdigest()

    def trial(runtime: str, dtype: str) -> runtime_choice.Trial:
        model = (
            TorchTextModel(encoder.files, max_length=None, device="cpu", dtype=dtype)
            if runtime == "torch"
            else GraphTextModel(encoder, identity.weights_sha256, runtime, dtype, max_length=None)
        )
        texts, question = runtime_choice.sample()
        documents, query = model.read(texts, ""), model.read([question], "")

        def embed(read: Sequence[ReadText], role: str) -> Float32[np.ndarray, "texts dim"]:
            return unit(model.embed(read, role=role, prefix="", batch_size=len(texts), progress=False))

        return runtime_choice.Trial(runtime, dtype, lambda: embed(documents, "document"), lambda: embed(query, "query"))

    return runtime_choice.timings(digest, identity.name, trial)


def _encoder(files: ModelFiles, runtime: str | None) -> BertEncoder | None:
    """Return a model that graphs can express; None for one that torch runs."""
    try:
        return BertEncoder.read(files)
    except OtherArchitectureError as found:
        if runtime is None:
            return None
        raise ModelError(
            f"{files.name}: the runtime {runtime!r} runs BERT encoders with mean or CLS pooling, found {found}. Leave "
            "runtime out."
        ) from found


_GRAPHS: Final = Shared[GraphTextModel]()
_NETWORKS: Final = Shared[TorchTextModel]()
