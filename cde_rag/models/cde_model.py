"""A model from texts to arrays, with an identity that names its vector space."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_texts
from cde_rag.context.context import Context
from cde_rag.errors import ContextMismatchError, ModelError, require
from cde_rag.models.batching import tight_buckets
from cde_rag.models.files import model_files
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.model import Embedded, Model
from cde_rag.models.runtimes import runtime_choice
from cde_rag.models.runtimes.attention import AUTO, Attention, check_without_torch
from cde_rag.models.runtimes.runtime_choice import Runtime
from cde_rag.models.runtimes.stage_runner import DOCUMENT, DTYPES, QUERY, Dtype, StageRunner
from cde_rag.models.runtimes.threads import batch_threads
from cde_rag.models.shared import Shared
from cde_rag.models.token_batches import KeptVectors, TokenBatches, blocks_of
from cde_rag.models.tokenizer import TextTokenizer, Tokens
from cde_rag.models.windows import cut_into_windows

if TYPE_CHECKING:
    from cde_rag.models.families import AnyNetwork


def native_dtype(device: str) -> str:
    """Return torch's fastest native dtype of a device: bf16 if supported, else fp16 on GPUs and fp32 on CPUs."""
    import torch

    if device.startswith("cuda"):
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    if device.startswith("mps"):
        return "float16"
    if not hasattr(torch.cpu, "get_capabilities"):  # torch < 2.11 cannot be asked
        return "float32"
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if capabilities.get("avx512_bf16") or capabilities.get("amx_bf16") else "float32"


class CDEModel(Model):
    """A two-stage model, with one-way or two-way context attention, or a pair of a one-way model and a plain encoder.

    The first stage and the path of the context run in float32, the second stage's layers in `dtype`. Thread-safe.

    Args:
        network: Both stages: a network of torch, float32; or compiled graphs, which have their own device and dtype.
        tokenizer: Tokenizer of both stages.
        digest: sha256 hex of config and weights.
        device: Device of the computation, such as "cpu" or "cuda"; by default CUDA if available, else the CPU.
        dtype: "float32", "bfloat16" or "float16" for the second stage's layers; the device's native one by default.
        attn_implementation: As in `EmbedderOptions`, for the second stage of a network of torch.

    Attributes:
        stages: Both stages, in their runtime.
        config: Config of the model.
        tokenizer: Tokenizer of both stages.
        kept_siblings: First-stage vectors of the last siblings.

    Raises:
        MissingExtraError: A network of torch, and torch is not installed.
        ModelError: `dtype` is another one, or flash attention is asked for and something is missing.
        ValueError: `attn_implementation` is another one.
    """

    in_workers = True
    _other: "CDEModel | None" = None  # in torch, where late chunking was asked of a model in another runtime

    def __init__(
        self,
        network: "AnyNetwork | StageRunner",
        tokenizer: TextTokenizer,
        digest: str,
        *,
        device: str | None = None,
        dtype: Dtype | None = None,
        attn_implementation: Attention = AUTO,
    ) -> None:
        if dtype not in (None, *DTYPES):
            raise ModelError(f"Expected dtype {', '.join(DTYPES)}, found {dtype!r}.")
        self.given_dtype, self.given_attention = dtype, attn_implementation
        self.stages: StageRunner = (
            network if isinstance(network, StageRunner) else _torch_runner(network, device, dtype, attn_implementation)
        )
        self.runtime, self.device, self.dtype = self.stages.runtime, self.stages.device, self.stages.dtype
        self.config = self.stages.config
        self.context_size, self.max_siblings = self.config.context_size, self.config.max_siblings
        self.has_null, self.late_chunks = self.config.null_embedding, self.config.late_chunks
        self.tokenizer = tokenizer
        self.identity = self.config.identity(digest, tokenizer.sha256)
        self.kept_siblings = KeptVectors()
        self._prefixes = {QUERY: self.identity.prefixes["query"], DOCUMENT: self.identity.prefixes["document"]}

    def __repr__(self) -> str:
        return f"CDEModel({self.identity.name}, {self.runtime}, {self.device}, {self.dtype})"

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path = "cde-mini",
        *,
        device: str | None = None,
        dtype: Dtype | None = None,
        runtime: Runtime | None = None,
        attn_implementation: Attention = AUTO,
        revision: str | None = None,
        token: str | None = None,
        attention: str | None = None,
        semantics: str | None = None,
        context_size: int | None = None,
        prefixes: Mapping[str, str] | None = None,
    ) -> "CDEModel":
        """Load a bundled model, a model from a local folder, or one from the hub; never pickle, never remote code.

        Args:
            name: "cde-mini" (the model of new collections), an exact bundled name, a folder, or a hub id such as
                "jxm/cde-small-v2"; the name in a Context's identity finds the very same model again.
            device: Device of the computation, as in the class.
            dtype: Dtype of the second stage's layers, as in the class; float32 for published models in a runtime
                without torch that is named.
            runtime: "torch", "openvino" or "onnx"; by default the environment's CDE_RAG_RUNTIME, or the fastest that is
                installed: the first use of a model on a machine measures, for some seconds, or up to a minute for
                published models. GPUs need torch.
            attn_implementation: As in `EmbedderOptions`.
            revision: Branch, tag or commit of a hub id. The newest by default; the identity's name pins it.
            token: Token for private and gated models of the hub; by default the one that `hf auth login` left.
            attention: For published models: "two_way", exact (the default), or "two_way_cached", an approximation in
                which the context is read once, by itself: a query then costs little more than a plain one. Vectors of
                the two are never mixed.
            semantics: For published models: "train", as its weights were trained (the default), or "hub"
                (cde-small-v2) and "hf_model_py" (cde-small-v1) for vectors that their remote code made.
            context_size: For published models: number of context documents, at most as in training (the default).
            prefixes: For published models: prefixes of a "query" and a "document"; "search_query: " and
                "search_document: " by default. Also trained: "classification: " and "clustering: ".

        Raises:
            MissingExtraError: The runtime is not installed, or none is; published models in torch need the
                extra `transformers`.
            ModelError: There is no such model; its files are incomplete, damaged, too large, pickled or of a newer
                format; it is not in the cache and there is no network; or the runtime does not run it.
        """
        asked = _parsed(name).completed(
            revision=revision,
            attention=attention,
            semantics=semantics,
            context_size=context_size,
            prefixes=prefixes,
        )
        source = ModelSource.find(asked, token=token)
        return cls._read(source, device, dtype, runtime, attn_implementation)

    @classmethod
    def shared(
        cls,
        name: str | Path,
        *,
        device: str | None = None,
        dtype: Dtype | None = None,
        runtime: Runtime | None = None,
        attn_implementation: Attention = AUTO,
    ) -> "CDEModel":
        """Return the model that the embedders of this process share: loaded for the first, freed with the last.

        Arguments and errors are those of `from_pretrained`, which loads a model anew each time. Files that were written
        since are another model. The network of a shared model is not to be changed.
        """
        source = ModelSource.find(_parsed(name))
        asked = runtime_choice.asked(runtime), batch_threads()
        key = (source.name, device, dtype, runtime, attn_implementation, asked, tuple(source.written()))
        return _SHARED.get(key, lambda: cls._read(source, device, dtype, runtime, attn_implementation))

    @classmethod
    def _read(
        cls,
        source: ModelSource,
        device: str | None,
        dtype: Dtype | None,
        runtime: Runtime | None,
        attention: Attention,
    ) -> "CDEModel":
        chosen, fitting = source.chosen_runtime(runtime, device, dtype)
        if chosen == "torch":
            network, tokenizer, digest = source.network()
            model = cls(network, tokenizer, digest, device=device, dtype=fitting, attn_implementation=attention)
        else:
            check_without_torch(attention, chosen)
            files = source.files
            model = cls(source.graphs(chosen, fitting or "float32"), files.tokenizer, files.digest)
        model.given_dtype, model.given_runtime, model.given_attention = dtype, runtime, attention
        model.folder = source.folder
        return model

    @property
    def threads(self) -> int:
        """CPU threads of a batch, at least 1; a single query takes one."""
        return self.stages.threads

    @property
    def network(self) -> Any:
        """Network of torch: a `TwoStage`, `TwoWay` or `PairNetwork`.

        Raises:
            ModelError: The model runs without torch.
        """
        network: Any = getattr(self.stages, "network", None)  # of TorchRunner, whose module needs torch
        if network is None:
            raise ModelError(f"Expected a model in torch, found one in {self.runtime}. Load it with runtime='torch'.")
        return network

    def tokenize(self, texts: Sequence[str], *, role: int = DOCUMENT, first: int = 0) -> list[Tokens]:
        """Tokenize texts for the second stage, the role's prefix included.

        Args:
            texts: Texts.
            role: `roles.QUERY` or `roles.DOCUMENT`.
            first: Position of the first of them in the caller's list, for messages.

        Raises:
            CorpusError: A text is blank or holds a lone surrogate.
        """
        return self.tokenizer(texts, self.config.max_length, prefix=self._prefixes[role], first=first)

    def tokenize_windows(self, text: str, *, role: int = DOCUMENT) -> list[Tokens]:
        """Tokenize all of a text, in windows that the second stage reads completely.

        Args:
            text: A text of any length.
            role: As for `tokenize`.

        Raises:
            CorpusError: The text is blank or holds a lone surrogate.
        """
        check_texts([text])
        limit, one = self.config.max_length, ["a"]
        bare, prefixed = (self.tokenizer(one, limit, prefix=prefix)[0] for prefix in ("", self._prefixes[role]))
        room = max(limit - (len(prefixed.ids) - len(bare.ids)), self.tokenizer.special_tokens + 1)
        windows = cut_into_windows(text, lambda part: self.tokenizer.reach([part], room)[0], room)
        return self.tokenize(windows, role=role)

    def first_stage(self, texts: Sequence[str], *, mini_batch_size: int = 64) -> Float32[np.ndarray, "texts dim"]:
        """Embed each text by itself, as a row of a Context or as a sibling.

        Returns:
            Float32, independent of the other texts of the call up to rounding (1e-6); unit norm in one-way models.

        Raises:
            CorpusError: A text is blank or holds a lone surrogate.
            ValueError: `mini_batch_size` is below 1.
        """
        vectors = np.empty((len(texts), self.identity.context_dim), dtype=np.float32)
        tokenized = self.tokenizer(texts, self.config.first_stage_max_length, prefix=self._prefixes[DOCUMENT])
        rows = [tokens.ids for tokens in tokenized]
        for bucket in tight_buckets([len(row) for row in rows], mini_batch_size, self.stages.tokens_at_once):
            vectors[bucket] = self.stages.read([rows[position] for position in bucket])
        return vectors

    def prepare(self, context: Context) -> object:
        """Compute the input of the second stage from a Context, once per Context.

        Raises:
            ContextError: A two-way model needs another number of context documents, or has no null embedding.
            ContextMismatchError: The context was made by other weights, another tokenizer or other settings.
        """
        if replace(context.identity, name="", windows=False) != replace(self.identity, name=""):
            raise ContextMismatchError(
                expected=context.identity.weights_sha256,
                found=self.identity.weights_sha256,
                remedy=f"The context was made by {context.identity.name!r}: load that model, or fit a new context.",
            )
        return self.stages.prepare(context.context_embeddings, context.counts)

    def embed(
        self,
        texts: Sequence[str],
        role: int,
        prepared: object,
        siblings: Sequence[Sequence[str]] | None,
        *,
        windows: bool,
        mini_batch_size: int,
        progress: bool = False,
    ) -> Embedded:
        """Embed texts with the second stage; see `Model.embed`."""
        batches = TokenBatches(self, texts, role, siblings, size=mini_batch_size, windows=windows, progress=progress)
        for batch in batches:
            batch.vectors = self.stages.embed(batch.rows, role, prepared, batch.siblings, batch.sibling_mask)
        return batches.embedded

    def embed_chunks(
        self, documents: Sequence[Sequence[str]], prepared: Any, sibling_rule: int, *, mini_batch_size: int
    ) -> Embedded:
        """Embed chunks that are read together, in torch; see `Model.embed_chunks`."""
        if not self.late_chunks:
            return super().embed_chunks(documents, prepared, sibling_rule, mini_batch_size=mini_batch_size)
        require("torch", "torch")
        from cde_rag.models.one_way.late_chunking import LateChunking

        return LateChunking(self, self._in_torch().network, prepared, sibling_rule)(documents, mini_batch_size)

    def _in_torch(self) -> "CDEModel":
        """Return the same model in torch, which a model in another runtime loads once.

        Raises:
            ModelError: Its files are no longer those that it was loaded from.
        """
        if self.runtime == "torch" or self.folder is None:
            return self
        if self._other is None:
            found = CDEModel.shared(self.folder, device="cpu", dtype="float32", runtime="torch")
            if found.identity != self.identity:
                raise ModelError(f"{self.folder} was written since the model was loaded. Load it again.")
            self._other = found
        return self._other

    def count_tokens(self, texts: Sequence[str], *, windows: bool) -> int:
        """Count the tokens of all texts as they are read, prefixes and special tokens included."""
        blocks = blocks_of(self, texts, self.tokenize(texts), DOCUMENT, windows=windows)
        return sum(self.tokenizer.count(row.ids) for block in blocks for _, row in block)


def _parsed(name: str | Path) -> ModelName:
    text = str(name)
    return ModelName(base=text) if model_files.local(text) else ModelName.parse(text)


def _torch_runner(network: "AnyNetwork", device: str | None, dtype: str | None, attention: str) -> StageRunner:
    torch: Any = require("torch", "torch")
    from cde_rag.models.runtimes.torch_runner import TorchRunner

    place = ("cuda" if torch.cuda.is_available() else "cpu") if device is None else device
    return TorchRunner(network, place, native_dtype(place) if dtype is None else dtype, attention)


_SHARED: Final = Shared[CDEModel]()
