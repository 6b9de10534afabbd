"""Start of training: a finished model, or a new one whose encoder is that of a plain embedder."""

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import read_json, weight_files
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.pair.network import PairNetwork
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import checkpoint as two_way_checkpoint
from cde_rag.models.two_way import files as published
from cde_rag.models.two_way.config import MODERN_BERT, TwoWayConfig
from cde_rag.models.two_way.files import PREFIX_END, read_tensors
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.clustering.surrogate import minilm_folder
from cde_rag_training.config import StartConfig

MINILM = "minilm"
WRAPPERS = ("model.", "bert.")  # what a backbone's keys begin with where it was saved inside another model

SIBLINGS_SHARE = 0.3  # of the siblings' mean in the output; gains about 3 points before any training
BERT_LAYER = {
    "attention.output.dense": "output",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "up",
    "output.dense": "down",
    "output.LayerNorm": "output_norm",
}


class Start(NamedTuple):
    """Model at the start of training.

    Attributes:
        network: Both stages, float32.
        tokenizer: Its tokenizer.
        new_first_stage: True if the first stage has yet to be distilled from the plain embedder.
    """

    network: TwoStage | TwoWay
    tokenizer: TextTokenizer
    new_first_stage: bool


def load_start(config: StartConfig, *, seed: int) -> Start:
    """Load the model that a run starts from, under its new name.

    Args:
        config: Names it.
        seed: Random seed of the parts that start at random.

    Raises:
        MissingExtraError: "minilm" needs the extra `train`, a two-way model `hub`.
        ModelError: There is no such model, or one of a kind that cannot be trained.
    """
    folder = minilm_folder() if config.model == MINILM else checkpoints.local(config.model)
    kind = read_json(folder / checkpoints.CONFIG).get("model_type") if folder is not None else None
    if folder is not None and kind == "bert":
        tokenizer = TextTokenizer(bert_tokenizer(folder))
        return Start(from_bert(folder, _bert_config(folder, config), seed=seed), tokenizer, new_first_stage=True)
    if folder is not None and kind in published.TOKENIZERS:
        tokenizer = TextTokenizer(bert_tokenizer(folder))
        return Start(two_way_from_backbone(folder, tokenizer, config, seed=seed), tokenizer, new_first_stage=False)
    loaded, tokenizer, _ = ModelSource.find(ModelName.parse(config.model)).network()
    network = trainable(loaded)
    if isinstance(network, TwoStage):
        network.config = replace(network.config, name=config.name)
    else:
        network.config = replace(network.config, name=config.name)
    return Start(network, tokenizer, new_first_stage=False)


def trainable(network: TwoStage | TwoWay | PairNetwork) -> TwoStage | TwoWay:
    """A network of a kind that can be trained.

    Raises:
        ModelError: It is a pair.
    """
    if isinstance(network, PairNetwork):
        config = network.config
        raise ModelError(
            f"{config.name}: expected a model that can be trained, found a pair of encoders. Train {config.first}, its "
            "first half."
        )
    return network


def _bert_config(folder: Path, config: StartConfig) -> ModelConfig:
    sizes = read_json(folder / checkpoints.CONFIG)
    try:
        return ModelConfig(
            name=config.name,
            vocab_size=sizes["vocab_size"],
            dim=sizes["hidden_size"],
            layers=sizes["num_hidden_layers"],
            context_layers=min(config.context_layers, sizes["num_hidden_layers"]),
            first_stage_layers=config.first_stage_layers,
            lead_share=config.lead_share,
            full_likeness=config.full_likeness,
            heads=sizes["num_attention_heads"],
            intermediate=sizes["intermediate_size"],
            max_positions=sizes["max_position_embeddings"],
            max_length=config.max_length,
            first_stage_max_length=min(128, config.max_length),
        )
    except KeyError as error:
        raise ModelError(
            f"{folder}: expected the sizes of a BERT in {checkpoints.CONFIG}, found no {error}."
        ) from error


def two_way_from_backbone(folder: Path, tokenizer: TextTokenizer, config: StartConfig, *, seed: int) -> TwoWay:
    """Build a two-way model from a backbone such as ModernBERT for both stages; projections are random.

    Args:
        folder: Holds config.json and the backbone's tensors, under its own names.
        tokenizer: Tokenizer of the backbone.
        config: Name, context_size and max_length.
        seed: Random seed of the projections.

    Raises:
        MissingExtraError: `transformers` is not installed, or too old.
        ModelError: The backbone is not one of those that two-way models are made of.
    """
    family = str(read_json(folder / checkpoints.CONFIG)["model_type"])
    tensors = {_unwrapped(name): value for name, value in read_tensors(folder, weight_files(folder)).items()}
    errors: list[str] = []
    for sizes in published.BACKBONES.values():
        if sizes["family"] != family:
            continue
        fields: dict[str, Any] = dict(sizes)
        model = TwoWayConfig(
            **fields,
            name=config.name,
            pooling="text_after_prefix" if family == MODERN_BERT else "text",
            trained_context_size=config.context_size,
            context_size=config.context_size,
            max_length=config.max_length,
            null_embedding=True,
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = TwoWay(model, prefix_end=tokenizer.first_id(PREFIX_END))
        state = two_way_checkpoint.published_state(network.state_dict(), model)
        places = ("first_stage_model.embedder.", "second_stage_model.backbone.")
        wanted = {name.removeprefix(place) for place in places for name in state if name.startswith(place)}
        if missing := sorted(wanted - tensors.keys()):
            errors.append(f"no {missing[0]}")
            continue
        state |= {f"{place}{name}": tensors[name] for place in places for name in wanted}
        try:
            network.load_state_dict(two_way_checkpoint.own_state(state, model))
        except ModelError as error:
            errors.append(str(error))
            continue
        return network.eval()
    raise ModelError(
        f"{folder}: expected one of the backbones {', '.join(published.BACKBONES)}, found another of family {family}: "
        f"{'; '.join(errors)}."
    )


def _unwrapped(name: str) -> str:
    return next((name.removeprefix(wrapper) for wrapper in WRAPPERS if name.startswith(wrapper)), name)


def _copy(layer: nn.Module, bert: dict[str, Tensor], number: int) -> None:
    prefix = f"encoder.layer.{number}."
    state = {
        f"{ours}.{kind}": bert[f"{prefix}{theirs}.{kind}"]
        for theirs, ours in BERT_LAYER.items()
        for kind in ("weight", "bias")
    }
    for kind in ("weight", "bias"):
        parts = [bert[f"{prefix}attention.self.{name}.{kind}"] for name in ("query", "key", "value")]
        state[f"query_key_value.{kind}"] = torch.cat(parts)
    layer.load_state_dict(state)


def from_bert(folder: Path, config: ModelConfig, *, seed: int) -> TwoStage:
    """Build a one-way model from a BERT checkpoint with mean pooling, such as all-MiniLM-L6-v2.

    The second stage starts as that checkpoint: gates and roles are zero, the output map is the identity, so that its
    vectors are the checkpoint's under every context. The first stage takes the checkpoint's first layers and a
    projection that starts at nothing, and has to be distilled. A layer's context keys and values start as its own, and
    a share of the siblings' mean is in the output from the start.

    Args:
        folder: Holds `model.safetensors` with Hugging Face's BERT keys.
        config: Sizes; those of the encoder must be the checkpoint's.
        seed: Random seed of the parts that start at random (set attention).
    """
    bert = load_file(folder / "model.safetensors")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = TwoStage(config)
    embeddings = network.embeddings
    embeddings.word.weight = nn.Parameter(bert["embeddings.word_embeddings.weight"].clone())
    # A text has one token type, so that its row is a constant of the positions.
    positions = bert["embeddings.position_embeddings.weight"] + bert["embeddings.token_type_embeddings.weight"][0]
    embeddings.position.weight = nn.Parameter(positions)
    embeddings.norm.load_state_dict({kind: bert[f"embeddings.LayerNorm.{kind}"] for kind in ("weight", "bias")})
    for number, layer in enumerate(network.second_stage.layers):
        _copy(layer, bert, number)
    plain = config.layers - config.context_layers
    for layer, given in zip(network.second_stage.layers[plain:], network.second_stage.given, strict=True):
        own = layer.get_submodule("query_key_value").state_dict()
        given.load_state_dict({kind: own[kind][config.dim :] for kind in own})
    for number, layer in enumerate(network.first_stage.layers):
        _copy(layer, bert, number)
    with torch.no_grad():
        network.second_stage.sibling_output.weight.copy_(SIBLINGS_SHARE * torch.eye(config.dim))
    nn.init.zeros_(network.first_stage.down.weight)
    nn.init.zeros_(network.first_stage.down.bias)
    return network.eval()


def bert_tokenizer(folder: Path) -> str:
    """Return the checkpoint's tokenizer as JSON, without truncation and padding, which our code does."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer.to_str()
