"""Both stages of a network as functions of mini-batches of token ids, for either kind of context attention."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cde_rag.errors import ModelError
from cde_rag.models.batching import length_buckets
from cde_rag.models.cde_model import native_dtype
from cde_rag.models.one_way.attention import EncoderLayer
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.runtimes.torch_runner import DTYPES, pad
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way.backbones import Backbone
from cde_rag.models.two_way.config import BERT
from cde_rag.models.two_way.network import PreparedTokens, TwoWay
from cde_rag_training.recipe import RecipeError


class TextBatch(NamedTuple):
    """A mini-batch of the second stage.

    Attributes:
        ids: Token ids of each text.
        role: `QUERY` or `DOCUMENT`, of all of them.
        siblings: Siblings of each text, as rows of the first stage's vectors.
        dropped: True for context embeddings that are the null embedding for a text alone; None if there are none.
        layers: Number of layers of the stage that read it, the lowest ones; None: all.
    """

    ids: list[list[int]]
    role: int
    siblings: list[list[int]]
    dropped: Bool[Tensor, "texts context"] | None = None
    layers: int | None = None


class Stages(ABC):
    """Network in training, one stage at a time.

    The input of the second stage is a list of tensors, so that gradients can be cached between the stages.

    Args:
        network: Both stages, float32.
        device: Device of the network.
        precision: Precision of matrix products: "float32", "bfloat16", "float16" or "auto" (bfloat16 if the device
            supports it natively, else float16 on a GPU); the weights stay float32.

    Attributes:
        scaled: True if gradients are so small that the loss has to be scaled: those of float16.
    """

    network: TwoStage | TwoWay
    layers: int  # of the second stage
    fewest_layers: int  # of it, from the bottom, with which it still is a contextual model
    reads_siblings: bool
    knows_null: bool  # whether there is a null context
    context_tokens: int  # context embeddings that a text can lack by itself; 0 where the context is condensed

    def __init__(self, network: TwoStage | TwoWay, *, device: str, precision: str) -> None:
        self.network = network.to(device)
        self.device = torch.device(device)
        self._dtype = DTYPES[native_dtype(device) if precision == "auto" else precision]
        self.scaled = self._dtype == torch.float16

    @property
    def dim(self) -> int:
        """Number of dimensions of the embeddings."""
        return self.network.config.dim

    @property
    def context_dim(self) -> int:
        """Length of a context document's row of first-stage vectors."""
        return self.dim

    def checkpoint_layers(self) -> None:
        """Let every layer keep its input alone for the backward pass, which computes the rest again.

        Source: Chen et al. 2016 (Training Deep Nets with Sublinear Memory Cost).
        """
        layers: list[Any] = []
        for module in self.network.modules():
            if isinstance(module, EncoderLayer):
                layers.append(module)
            elif isinstance(module, Backbone):
                layers += module.layers.blocks
                one_by_one: Any = module.layers  # which call no block itself
                one_by_one.step = partial(checkpoint, one_by_one.step, use_reentrant=False)
        for layer in layers:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)

    def _autocast(self) -> AbstractContextManager[object]:
        enabled = self._dtype != torch.float32
        return torch.autocast(self.device.type, dtype=self._dtype if enabled else torch.bfloat16, enabled=enabled)

    def _padded(self, ids: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        tokens, mask = pad(ids)
        return tokens.to(self.device), mask.to(self.device)

    def first_ids(self, ids: list[int], prefix: list[int] | None = None) -> list[int]:
        """Return a document's token ids for the first stage; with a prefix in place of the model's own."""
        return _cut(self._prefixed(ids, DOCUMENT, prefix), self.network.config.first_stage_max_length)

    def second_ids(self, ids: list[int], role: int, prefix: list[int] | None = None) -> list[int]:
        """Return a text's token ids for the second stage; with a prefix in place of the model's own."""
        return _cut(self._prefixed(ids, role, prefix), self.network.config.max_length)

    def _prefixed(self, ids: list[int], role: int, prefix: list[int] | None) -> list[int]:
        del role, prefix
        return ids

    def prefix_ids(self, prefix: str) -> list[int]:
        """Return the token ids of a prefix, without special tokens.

        Raises:
            RecipeError: The model has no prefixes.
        """
        raise self._no_prefixes(prefix)

    def check_prefixes(self, prefixes: Sequence[list[int]]) -> None:
        """Check prefixes that are given as token ids.

        Raises:
            RecipeError: The model has no prefixes, or would find the end of one elsewhere.
        """
        raise self._no_prefixes(f"{len(prefixes)} others")

    def _no_prefixes(self, found: str) -> RecipeError:
        return RecipeError(
            f"{self.network.config.name} separates queries from documents by a learned vector, found prefixes: "
            f"{found!r}. Leave "
            "them out of sources and pairs; they are for two-way models."
        )

    def first(self, ids: Sequence[Sequence[int]], given: Sequence[Tensor]) -> Float[Tensor, "texts dim"]:
        """Run the first stage in training, with gradients."""
        del given
        with self._autocast():
            return self.network.read(*self._padded(ids)).float()

    @torch.no_grad()
    def read(self, ids: Sequence[list[int]], *, mini_batch_size: int) -> Float[Tensor, "texts dim"]:
        """Run the finished first stage as for contexts, in float32; texts in any order and number."""
        vectors = torch.zeros(len(ids), self.context_dim, device=self.device)
        for bucket in length_buckets([len(row) for row in ids], mini_batch_size):
            vectors[bucket] = self.network.read(*self._padded([ids[place] for place in bucket]))
        return vectors

    @abstractmethod
    def prepare(
        self, vectors: Float[Tensor, "vectors dim"], context: Sequence[int], dropped: Sequence[bool]
    ) -> list[Tensor]:
        """Compute the input of the second stage.

        Args:
            vectors: First-stage vectors of context and siblings.
            context: Rows of the context documents; empty for the null context.
            dropped: True for context documents that are left out.
        """

    @abstractmethod
    def second(self, texts: TextBatch, given: Sequence[Tensor]) -> Float[Tensor, "texts dim"]:
        """Run the second stage: float32, unit norm."""

    @abstractmethod
    def shortened(self, layers: int) -> TwoStage | TwoWay:
        """Return a copy of the network whose second stage has its lowest layers alone.

        Args:
            layers: Their number, from `fewest_layers` on.
        """

    @torch.no_grad()
    def embed(
        self, ids: Sequence[list[int]], role: int, given: Sequence[Tensor], *, mini_batch_size: int
    ) -> Float[Tensor, "texts dim"]:
        """Embed texts without siblings in any order and number, without gradients."""
        vectors = torch.zeros(len(ids), self.dim, device=self.device)
        for bucket in length_buckets([len(row) for row in ids], mini_batch_size):
            vectors[bucket] = self.second(
                TextBatch([ids[place] for place in bucket], role, [[] for _ in bucket]), given
            )
        return vectors

    @abstractmethod
    def figures(self) -> dict[str, float]:
        """Return metrics of the weights for the log."""


class OneWayStages(Stages):
    """A network with one-way context attention."""

    reads_siblings = knows_null = True
    context_tokens = 0

    def __init__(self, network: TwoStage, *, device: str, precision: str) -> None:
        super().__init__(network, device=device, precision=precision)
        self._one_way = network
        self.layers = network.config.layers
        self.fewest_layers = self.layers - network.config.context_layers + 1

    def prepare(
        self, vectors: Float[Tensor, "vectors dim"], context: Sequence[int], dropped: Sequence[bool]
    ) -> list[Tensor]:
        """Return the prepared context, and all vectors, from which siblings are looked up."""
        kept = [row for row, out in zip(context, dropped, strict=True) if not out]
        chosen = vectors[torch.tensor(kept, dtype=torch.long, device=self.device)]
        counts = torch.ones(len(kept), dtype=torch.long, device=self.device)
        prepared = self._one_way.prepare(chosen, counts)
        return [prepared.keys, prepared.values, prepared.output_map, prepared.sibling_weight, vectors]

    def second(self, texts: TextBatch, given: Sequence[Tensor]) -> Float[Tensor, "texts dim"]:
        """Run the second stage with cross-attention to the prepared context and the siblings."""
        keys, values, output_map, sibling_weight, vectors = given
        siblings, there = self._siblings(texts.siblings, vectors)
        stage = self._one_way.second_stage
        layers, attending = stage.layers, stage.given
        if texts.layers is not None:
            kept = texts.layers - self.fewest_layers + 1
            stage.layers, stage.given = layers[: texts.layers], attending[:kept]
            keys, values = keys[:kept], values[:kept]
        try:
            with self._autocast():
                return stage(
                    self._one_way.embeddings,
                    *self._padded(texts.ids),
                    texts.role,
                    PreparedContext(keys, values, output_map, sibling_weight),
                    siblings,
                    there,
                )
        finally:
            stage.layers, stage.given = layers, attending

    def shortened(self, layers: int) -> TwoStage:
        """Return a copy with the lowest layers of the second stage, and the context's part in them."""
        network, kept = copy.deepcopy(self._one_way), layers - self.fewest_layers + 1
        stage = network.second_stage
        stage.layers, stage.given = stage.layers[:layers], stage.given[:kept]
        stage.gates = nn.Parameter(stage.gates.detach()[:kept])
        network.config = replace(network.config, layers=layers, context_layers=kept)
        return network

    def _siblings(
        self, groups: list[list[int]], vectors: Float[Tensor, "vectors dim"]
    ) -> tuple[Float[Tensor, "texts siblings dim"] | None, Bool[Tensor, "texts siblings"] | None]:
        if not any(groups):
            return None, None
        rows, there = self._padded(groups)
        return vectors[rows] * there[:, :, None], there

    def figures(self) -> dict[str, float]:
        """Return the mean gate and the output map's exponent."""
        gates, exponent = self._one_way.second_stage.gates, self._one_way.output_map.exponent
        return {"gate": float(gates.detach().tanh().abs().mean()), "exponent": float(exponent.detach())}


class TwoWayStages(Stages):
    """A network with two-way context attention. It reads no siblings, and its texts carry their prefixes.

    Args:
        network: Both stages, float32.
        tokenizer: Tokenizer of the prefixes.
        device: As in the class above.
        precision: As in the class above.
    """

    reads_siblings = False
    fewest_layers = 1

    def __init__(self, network: TwoWay, tokenizer: TextTokenizer, *, device: str, precision: str) -> None:
        super().__init__(network, device=device, precision=precision)
        self._two_way = network
        config = network.config
        self.layers, self.knows_null, self._tokenizer = config.layers, config.null_embedding, tokenizer
        self.context_tokens = config.context_tokens if config.null_embedding else 0
        self._decoder = Tokenizer.from_str(tokenizer.serialised)
        spaced, words = (self._decoder.encode(text, add_special_tokens=False).ids for text in (" a b", "a b"))
        self._marks_spaces = spaced != words and spaced == self._after_space(words)
        roles = ((QUERY, config.query_prefix), (DOCUMENT, config.document_prefix))
        self._prefixes = {role: self.prefix_ids(prefix) for role, prefix in roles}

    @property
    def context_dim(self) -> int:
        """Length of a context document's row: all its embeddings, one after the other."""
        return self._two_way.config.tokens_per_document * self.dim

    def prefix_ids(self, prefix: str) -> list[int]:
        """Return the token ids of a prefix, without special tokens."""
        if not prefix.strip():
            return []
        return self._tokenizer([prefix.rstrip()], self._two_way.config.max_length)[0].ids[1:-1]

    def check_prefixes(self, prefixes: Sequence[list[int]]) -> None:
        """Check that a model which pools after the prefix finds the end of each one."""
        stage = self._two_way.second_stage
        wrong = any(ids and (ids[-1] != stage.prefix_end or stage.prefix_end in ids[:-1]) for ids in prefixes)
        if stage.pooling == "text_after_prefix" and wrong:
            raise RecipeError(
                f"{self._two_way.config.name} pools over the tokens after the first colon: expected prefixes that end "
                "in one and have no other, such as 'classification: ', found another. Change it."
            )

    def _prefixed(self, ids: list[int], role: int, prefix: list[int] | None) -> list[int]:
        before, (first, *text, last) = self._prefixes[role] if prefix is None else prefix, ids
        if before and self._marks_spaces:  # prepared texts begin without the space that ends a prefix at inference
            text = self._after_space(text)
        return [first, *before, *text, last]

    def _after_space(self, ids: list[int]) -> list[int]:
        """Return the token ids of the same text after a space, which tokenizers of byte pairs count to its word."""
        text = self._decoder.decode(ids, skip_special_tokens=False)
        return self._decoder.encode(f" {text}", add_special_tokens=False).ids

    def prepare(
        self, vectors: Float[Tensor, "vectors dim"], context: Sequence[int], dropped: Sequence[bool]
    ) -> list[Tensor]:
        """Return the context tokens that precede every text; dropped documents become the null embedding.

        A context larger than the model's is cut, documents of a smaller one are repeated in turn.

        Raises:
            ModelError: Something is left out, or all of it, and the model has no null embedding.
        """
        size, null = self._two_way.config.context_size, self._two_way.second_stage.null_embedding
        if null is None and (not context or any(dropped)):
            raise ModelError(
                f"{self._two_way.config.name} has no null embedding, so that it is always given a context. Set "
                "context_dropout and corpora.context.null_share to 0."
            )
        rows = torch.tensor(context[:size], dtype=torch.long, device=self.device)
        chosen = vectors[rows]
        if null is not None:
            out = torch.tensor(dropped[:size], dtype=torch.bool, device=self.device)
            chosen = torch.where(out[:, None], null.repeat(chosen.shape[1] // len(null)), chosen)
        places = torch.arange(len(rows), device=self.device)
        counts = (size - 1 - places).div(max(1, len(rows)), rounding_mode="floor") + 1
        prepared = self._two_way.prepare(chosen, counts)
        if not isinstance(prepared, PreparedTokens):
            raise ModelError(f"{self._two_way.config.name} is a cached approximation; train the exact model.")
        return [prepared.tokens]

    def second(self, texts: TextBatch, given: Sequence[Tensor]) -> Float[Tensor, "texts dim"]:
        """Run the second stage with the context tokens in front of every text, some null for it alone."""
        encoder, name = _encoder(self._two_way)
        layers = getattr(encoder, name)
        setattr(encoder, name, layers[: texts.layers])
        try:
            with self._autocast():
                vectors = self._two_way.second_stage(
                    *self._padded(texts.ids), PreparedTokens(self._tokens(texts, given[0]))
                )
        finally:
            setattr(encoder, name, layers)
        return F.normalize(vectors.float(), dim=-1)

    def shortened(self, layers: int) -> TwoWay:
        """Return a copy with the lowest layers of the second stage; the first stage stays as it is."""
        network, config = copy.deepcopy(self._two_way), self._two_way.config
        encoder, name = _encoder(network)
        setattr(encoder, name, getattr(encoder, name)[:layers])
        first = config.layers if config.first_stage_layers is None else config.first_stage_layers
        network.config = replace(config, layers=layers, first_stage_layers=first)
        return network

    def _tokens(self, texts: TextBatch, given: Float[Tensor, "1 given dim"]) -> Float[Tensor, "contexts given dim"]:
        """Return the tokens before a text; where some are dropped, with a row for each text."""
        null = self._two_way.second_stage.null_embedding
        if texts.dropped is None or null is None:
            return given
        dropped = texts.dropped.to(self.device)
        out = F.pad(dropped, (0, given.shape[1] - dropped.shape[1]))  # soft tokens stay
        return torch.where(out[:, :, None], null, given)

    def figures(self) -> dict[str, float]:
        """Return an empty mapping, since there are no gates."""
        return {}


def _encoder(network: TwoWay) -> tuple[Any, str]:
    """Return the module that holds the layers of a second stage, and their name in it."""
    native = network.second_stage.backbone.native
    return (native.encoder, "layer") if network.config.family == BERT else (native, "layers")


def stages_of(network: TwoStage | TwoWay, tokenizer: TextTokenizer, *, device: str, precision: str) -> Stages:
    """Return the stages of a one-way or two-way network."""
    if isinstance(network, TwoStage):
        return OneWayStages(network, device=device, precision=precision)
    return TwoWayStages(network, tokenizer, device=device, precision=precision)


def _cut(ids: list[int], length: int) -> list[int]:
    return [*ids[: length - 1], ids[-1]] if len(ids) > length else ids
