"""Start of training: a finished model, or a new one whose encoder is that of a plain embedder."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.files.weights import MODULES, read_json
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.pair.network import PairNetwork
from cde_rag.models.plain.bert import BertEncoder
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.modules import Head, Normalize, Pooling, read_modules
from cde_rag.models.plain.settings import OtherArchitectureError, other_forms
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way.config import BERT, EPS, MODERN_BERT, NOMIC_BERT, TwoWayConfig
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.clustering.surrogate import minilm_folder
from cde_rag_training.config import CONTEXT_LAYERS, MAX_LENGTH, ONE_WAY, TWO_WAY, DistillationConfig, StartConfig
from cde_rag_training.networks.backbone import backbone_sizes, backbone_tensors, two_way_from_backbone
from cde_rag_training.recipe import RecipeError

MINILM = "minilm"

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

    A BERT starts a one-way model, unless two-way attention is asked for; NomicBERT and ModernBERT start two-way models.

    Args:
        config: Names it.
        seed: Random seed of the parts that start at random.

    Raises:
        MissingExtraError: "minilm" needs the extra `train`, a two-way model `hub`.
        ModelError: There is no such model, or one of a kind that cannot be trained.
        RecipeError: A setting that the model has otherwise or not at all: a finished model fixes its sizes.
    """
    backbone = _backbone(config.model)
    if backbone is None:
        loaded, tokenizer, _ = ModelSource.find(ModelName.parse(config.model)).network()
        start = Start(_named(trainable(loaded), config.name), tokenizer, new_first_stage=False)
    else:
        folder, family = backbone
        tokenizer = TextTokenizer(bert_tokenizer(folder))
        if family == BERT and config.attention != TWO_WAY:
            network = from_bert(folder, _bert_config(folder, config), seed=seed)
            start = Start(network, tokenizer, new_first_stage=True)
        else:
            network = two_way_from_backbone(folder, tokenizer, config, seed=seed)
            start = Start(network, tokenizer, new_first_stage=False)
    _refuse_other_settings(config, start)
    return start


def start_tokenizer(model: str) -> TextTokenizer:
    """Return the tokenizer of a start, which does not depend on the sizes that a recipe chooses.

    Args:
        model: As `StartConfig.model`.

    Raises:
        MissingExtraError: As for `load_start`.
        ModelError: There is no such model, or one of a kind that cannot be trained.
    """
    backbone = _backbone(model)
    if backbone is not None:
        return TextTokenizer(bert_tokenizer(backbone[0]))
    loaded, tokenizer, _ = ModelSource.find(ModelName.parse(model)).network()
    trainable(loaded)
    return tokenizer


def _backbone(model: str) -> tuple[Path, str] | None:
    """Return the folder and family of a backbone; None for a finished model."""
    folder = minilm_folder() if model == MINILM else checkpoints.local(model)
    family = None if folder is None else read_json(folder / checkpoints.CONFIG).get("model_type")
    return None if folder is None or family not in (BERT, NOMIC_BERT, MODERN_BERT) else (folder, str(family))


def _named(network: TwoStage | TwoWay, name: str) -> TwoStage | TwoWay:
    if isinstance(network, TwoStage):
        network.config = replace(network.config, name=name)
    else:
        network.config = replace(network.config, name=name)
    return network


def start_settings(network: TwoStage | TwoWay) -> dict[str, Any]:
    """Return the settings of `StartConfig` that a network has, with their values."""
    config = network.config
    if isinstance(config, ModelConfig):
        found = {name: getattr(config, name) for name in ("context_layers", "lead_share", "full_likeness")}
        first = config.first_stage_layers
        return found | {"attention": ONE_WAY, **_sizes(config), "first_stage_layers": first}
    return {
        "attention": TWO_WAY,
        **_sizes(config),
        "first_stage_layers": config.of_first_stage.layers,
        "context_size": config.trained_context_size,
        "soft_tokens": config.soft_tokens,
        "tokens_per_document": config.tokens_per_document,
        "context_positions": config.is_modern and config.context_positions,
    }


def _sizes(config: ModelConfig | TwoWayConfig) -> dict[str, Any]:
    return {"max_length": config.max_length, "limit_layers": config.layers}


def _refuse_other_settings(config: StartConfig, start: Start) -> None:
    """Refuse settings that the start does not have in this form, so that none is ignored."""
    found = start_settings(start.network)
    settable = {each.name for each in fields(StartConfig)} - {"model", "name", "distillation"}
    for name in sorted(settable):
        asked = getattr(config, name)
        if asked is None or (name in found and asked == found[name]):
            continue
        has = f"{name} {found[name]!r}" if name in found else f"{found['attention']} attention, which has no {name}"
        raise RecipeError(
            f"start.model {config.model!r} has {has}, found start.{name} {asked!r}. Leave it out, or start from "
            "another "
            "model."
        )
    if config.distillation != DistillationConfig() and not start.new_first_stage:
        raise RecipeError(
            f"start.model {config.model!r} has a first stage already, found settings in start.distillation, "
            "which is for "
            "a new one-way model. Leave them out."
        )


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
    where = folder / checkpoints.CONFIG
    sizes = backbone_sizes(read_json(where), where=str(where))
    length = MAX_LENGTH if config.max_length is None else config.max_length
    layers = min(sizes["layers"], config.limit_layers or sizes["layers"])
    _check_pooling(folder, sizes["dim"])
    return ModelConfig(
        name=config.name,
        layers=layers,
        context_layers=min(CONTEXT_LAYERS, layers) if config.context_layers is None else config.context_layers,
        first_stage_layers=1 if config.first_stage_layers is None else config.first_stage_layers,
        lead_share=config.lead_share or 0.0,
        full_likeness=config.full_likeness or 0.0,
        max_length=length,
        first_stage_max_length=min(128, length),
        norm_eps=sizes.get("eps", EPS[BERT]),
        **{name: sizes[name] for name in ("vocab_size", "dim", "heads", "intermediate", "max_positions")},
    )


def _check_pooling(folder: Path, dim: int) -> None:
    """Refuse a SentenceTransformer whose vectors are no means of token states: a one-way model would give others."""
    if not (folder / MODULES).is_file():
        return
    files = ModelFiles.find(str(folder))
    try:
        with other_forms():
            _, *modules = read_modules(files, "document")
            steps = Head.read(files, modules, dim=dim, pooled=False).steps
        found = next((str(step) for step in steps if step not in (Pooling(("mean",)), Normalize())), None)
    except OtherArchitectureError as error:
        found = str(error)
    if found is not None:
        raise ModelError(
            f"{folder}: expected an embedder that pools by the mean, with which a one-way model starts, found {found}. "
            f"Start from another, or from this one's encoder: a copy of the folder without {MODULES}."
        )


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
        folder: Holds safetensors with Hugging Face's BERT keys.
        config: Sizes; those of the encoder must be the checkpoint's.
        seed: Random seed of the parts that start at random (set attention).

    Raises:
        ModelError: There are no such tensors, or tensors of other sizes.
    """
    bert = backbone_tensors(folder)
    for name, shape in BertEncoder(config, first=0, types=2, prefixes=("",)).shapes().items():
        if name not in bert or bert[name].shape != shape:
            raise ModelError(
                f"{folder}: expected the tensors of a BERT of {config.layers} layers, found no {name} of shape "
                f"{shape}. Is it the right config for these weights?"
            )
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
    """Return the checkpoint's tokenizer as JSON, without truncation and padding, which our code does.

    Raises:
        ModelError: It has none.
    """
    try:
        tokenizer = Tokenizer.from_file(str(folder / checkpoints.TOKENIZER))
    except Exception as error:  # the library raises bare Exceptions
        raise ModelError(
            f"{folder}: expected {checkpoints.TOKENIZER}, found: {error}. Save the model with a fast tokenizer."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer.to_str()
