"""Encoders of the published models: transformers' own classes, built from sizes, never downloaded."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cde_rag.errors import MissingExtraError, how_to_install, require
from cde_rag.models.two_way.config import BERT, TwoWayConfig
from cde_rag.models.two_way.layers import (
    BertLayers,
    Layers,
    ModernLayers,
    NomicLayers,
    NomicLayersByHead,
    PreparedKeys,
)

EXTRA = "transformers"
OLDEST = (5, 5)  # version of transformers that has both backbones


class Backbone(nn.Module):
    """An encoder of a text, alone or after given tokens that are vectors already.

    Attributes:
        native: transformers' module, whose parameters are the backbone's.
        layers: Its layers one by one.
        takes_flash: True if flash attention in `native` gives the same states. Not where positions begin anew within
            a sequence: transformers takes that for several sequences in one row, which do not see each other.
    """

    takes_flash = False

    def __init__(self, native: nn.Module, layers: Layers) -> None:
        super().__init__()
        self.native: Any = native
        self.layers = layers

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the parameters, and so of the computation."""
        return next(self.native.parameters()).dtype

    def read(
        self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Compute the token states of a text by itself."""
        return self.native(input_ids=ids, attention_mask=mask).last_hidden_state

    def read_after(
        self,
        given: Float[Tensor, "batch given dim"],
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch sequence"],
    ) -> Float[Tensor, "batch sequence dim"]:
        """Compute the states of a sequence of given tokens and text, in which every token attends to every token.

        Args:
            given: Context and soft tokens.
            ids: Token ids of the text.
            mask: True if there is a token at that place of the sequence.
        """
        raise NotImplementedError

    def prepare(self, given: Float[Tensor, "contexts given dim"]) -> PreparedKeys:
        """Compute keys and values of given tokens by themselves, without a text."""
        there = torch.ones(given.shape[:2], dtype=torch.bool, device=given.device)
        return self.layers.run(self.layers.embed_given(given.to(self.dtype)), there)[1]

    def read_after_prepared(
        self, prepared: PreparedKeys, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Compute the states of a text that attends to given tokens, which do not attend to it."""
        there = torch.cat([mask.new_ones(len(ids), prepared.keys.shape[3]), mask], dim=1)
        return self.layers.run(self.layers.embed_text(ids), there, prepared)[0]

    def restore_tables(self) -> None:
        """Compute the rotary tables, which are never stored, after a construction on the meta device."""
        self.native.rotary_emb = type(self.native.rotary_emb)(self.native.config)


class ModernBert(Backbone):
    """ModernBERT. Text is normalised by itself and then again with the given tokens; positions run through.

    So the order of a context matters, and in local layers the text does not see it. Without context positions all
    context documents stand at position 0, in local layers too, and their order changes nothing.

    Source: cde/model.py, whose second stage passes embedded text to a module that embeds.
    """

    def __init__(self, config: TwoWayConfig) -> None:
        transformers = _transformers()
        local = [config.is_local(number) for number in range(config.layers)]
        sizes = transformers.ModernBertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.max_positions,
            norm_eps=config.norm_eps,
            local_attention=config.window,
            layer_types=["sliding_attention" if each else "full_attention" for each in local],
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": config.rotary_theta()},
                "sliding_attention": {"rope_type": "default", "rope_theta": config.rotary_theta(local=True)},
            },
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            cls_token_id=None,
            sep_token_id=None,
            attn_implementation="sdpa",
        )
        native = transformers.ModernBertModel(sizes)
        super().__init__(native, ModernLayers(native, config.heads, config.window, config.unplaced))
        self.takes_flash = not config.unplaced

    def read_after(
        self,
        given: Float[Tensor, "batch given dim"],
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch sequence"],
    ) -> Float[Tensor, "batch sequence dim"]:
        """Compute the states of given tokens and text; the text is normalised once more than the given tokens."""
        if self.layers.unplaced:  # the native class knows no positions in its windows
            sequence = torch.cat([self.layers.embed_given(given.to(self.dtype)), self.layers.embed_text(ids)], dim=1)
            return self.layers.run(sequence, mask)[0]
        sequence = torch.cat([given.to(self.dtype), self.native.embeddings(input_ids=ids)], dim=1)
        return self.native(inputs_embeds=sequence, attention_mask=mask).last_hidden_state


class NomicBert(Backbone):
    """NomicBERT. Given tokens get no token type; those of a context as in training are unrotated.

    So the order of a full context changes nothing. With fewer context embeddings, some of the text is unrotated too.

    Source: cde/lib/nomic_bert with `disable_transductive_rotary_embedding`.
    """

    def __init__(self, config: TwoWayConfig) -> None:
        transformers = _transformers()
        sizes = transformers.NomicBertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.max_positions,
            layer_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rotary_theta()},
            attn_implementation="sdpa",
        )
        native = transformers.NomicBertModel(sizes)
        kind = NomicLayersByHead if config.by_head else NomicLayers
        super().__init__(native, kind(native, config.heads, config.unplaced))
        self.unrotated = config.unplaced

    def read_after(
        self,
        given: Float[Tensor, "batch given dim"],
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch sequence"],
    ) -> Float[Tensor, "batch sequence dim"]:
        """Compute the states of given tokens and text; only text has a token type, and places are as in `positions`."""
        embeddings = self.native.embeddings
        kind = embeddings.token_type_embeddings.weight[0]  # the native module adds it to all that it is given
        sequence = torch.cat([given.to(self.dtype) - kind, embeddings.word_embeddings(ids)], dim=1)
        return self.native(
            inputs_embeds=sequence, attention_mask=mask, position_ids=self.positions(mask)
        ).last_hidden_state

    def positions(self, mask: Bool[Tensor, "batch sequence"]) -> Int[Tensor, "1 sequence"]:
        """Return the position by which each token of a sequence is rotated."""
        places = torch.arange(mask.shape[1], device=mask.device)[None]
        return torch.where(places < self.unrotated, 0, places)

    def restore_tables(self) -> None:
        """Compute the rotary tables, and the native embeddings' position ids and token type ids (zeros)."""
        super().restore_tables()
        embeddings, config = self.native.embeddings, self.native.config
        embeddings.position_ids = torch.arange(config.max_position_embeddings)[None]
        embeddings.token_type_ids = torch.zeros_like(embeddings.position_ids)


class NomicBertByHead(NomicBert):
    """NomicBERT as in the remote code of cde-small-v1: tokens are rotated by the number of the head.

    Among rotated tokens the angles cancel, so text by itself is a bag of words, and only text and context are at an
    angle to each other. The native class knows one angle for all heads, so its layers are run one by one.

    Source: cde/hf_model.py.
    """

    def read(
        self, ids: Int[Tensor, "batch tokens"], mask: Bool[Tensor, "batch tokens"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """Compute the states of a text by itself at position 0, since equal rotations of all its tokens cancel."""
        nowhere = torch.zeros(1, ids.shape[1], dtype=torch.long, device=ids.device)
        return self.native(input_ids=ids, attention_mask=mask, position_ids=nowhere).last_hidden_state

    def read_after(
        self,
        given: Float[Tensor, "batch given dim"],
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch sequence"],
    ) -> Float[Tensor, "batch sequence dim"]:
        """Compute the states of given tokens and text layer by layer, rotated by the number of the head."""
        layers = self.layers
        sequence = torch.cat([layers.embed_given(given.to(self.dtype)), layers.embed_text(ids)], dim=1)
        return layers.run(sequence, mask)[0]


class Bert(Backbone):
    """BERT. Given tokens get no position and no token type; the text counts its positions from 0, as by itself.

    So the order of a context changes nothing (paper §4.2, position-agnostic embedding).
    """

    def __init__(self, config: TwoWayConfig) -> None:
        transformers = _transformers()
        sizes = transformers.BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.dim,
            intermediate_size=config.intermediate,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            max_position_embeddings=config.max_positions,
            layer_norm_eps=config.norm_eps,
            hidden_dropout_prob=0.0,  # as in the paper's code: disable_dropout
            attention_probs_dropout_prob=0.0,
            attn_implementation="sdpa",
        )
        native = transformers.BertModel(sizes, add_pooling_layer=False)
        super().__init__(native, BertLayers(native, config.heads))

    def read_after(
        self,
        given: Float[Tensor, "batch given dim"],
        ids: Int[Tensor, "batch tokens"],
        mask: Bool[Tensor, "batch sequence"],
    ) -> Float[Tensor, "batch sequence dim"]:
        """Compute the states of given tokens and text, layer by layer."""
        layers = self.layers
        sequence = torch.cat([layers.embed_given(given.to(self.dtype)), layers.embed_text(ids)], dim=1)
        return layers.run(sequence, mask)[0]

    def restore_tables(self) -> None:
        """Compute the native embeddings' position ids and token type ids (zeros)."""
        embeddings, config = self.native.embeddings, self.native.config
        embeddings.position_ids = torch.arange(config.max_position_embeddings)[None]
        embeddings.token_type_ids = torch.zeros_like(embeddings.position_ids)


def _transformers() -> Any:
    """Import transformers, in a version that has both backbones."""
    library = require("transformers", EXTRA)
    found = str(library.__version__)
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise MissingExtraError(
            f"transformers {'.'.join(map(str, OLDEST))} or newer is needed here, found {found}. {how_to_install(EXTRA)}"
        )
    return library


def build(config: TwoWayConfig) -> Backbone:
    """Build the backbone of a config, with random weights."""
    if config.is_modern:
        return ModernBert(config)
    if config.family == BERT:
        return Bert(config)
    return NomicBertByHead(config) if config.by_head else NomicBert(config)
