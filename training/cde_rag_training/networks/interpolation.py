"""Weight interpolation between a start model and models trained from it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.models.two_way import checkpoint
from cde_rag.models.two_way.network import TwoWay
from cde_rag_training.config import StartConfig
from cde_rag_training.networks.start import load_start, start_settings, trainable

SET_LATER = ("lead_share", "full_likeness")  # settings that a finished model may have been given after its training

ENCODER = ("second_stage.layers.", "second_stage.backbone.native.")


def interpolate(start: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """Interpolate the second stage's encoder between a start state and a trained state.

    An interpolated encoder keeps much of the training's gain and forgets less. The context path, the gates and the
    first stage stay as trained: at the start of training they are new.

    Args:
        start: A network's state.
        trained: The same network's, later.
        share: Interpolation weight, from start (0) to trained (1).

    Raises:
        ValueError: A share outside 0 … 1, or states of different networks.

    Source: Wortsman et al. 2022 (WiSE-FT).
    """
    if not 0 <= share <= 1:
        raise ValueError(f"Expected a share in 0 … 1, found {share}.")
    if differing := sorted(start.keys() ^ trained.keys()):
        raise ValueError(
            f"Expected two states of one network, found tensors in only one of them: {', '.join(differing[:3])}. Give "
            "the model that training started from."
        )
    return {
        name: torch.lerp(start[name].float(), value.float(), share) if name.startswith(ENCODER) else value
        for name, value in trained.items()
    }


def average(states: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Average a network's states over several trainings from one start (a model soup).

    Args:
        states: At least one; all have the same tensors.

    Raises:
        ValueError: States of different networks.

    Source: Wortsman et al. 2022 (a uniform model soup).
    """
    first, *others = states
    for other in others:
        if {name: value.shape for name, value in first.items()} != {name: value.shape for name, value in other.items()}:
            raise ValueError("Expected states of one network, found tensors of other names or shapes.")
    return {
        name: torch.stack([state[name].float() for state in states]).mean(0).to(value.dtype)
        for name, value in first.items()
    }


def interpolate_models(
    start: str,
    trained: Path,
    folder: Path,
    *,
    share: float,
    others: Sequence[Path] = (),
    siblings: float = 1.0,
    exponent: float | None = None,
) -> Path:
    """Write the interpolation of two models, or of a start and the mean of several trainings.

    Args:
        start: Start model of the training, as in `StartConfig.model`.
        trained: Folder of the trained model.
        folder: Folder of the new model, which takes its name; must not exist.
        others: Folders of other models that were trained from the same start; the mean of all is taken. First stage
            and context path must have started alike, too: random initialisations differ between seeds.
        share: Interpolation weight, from start (0) to trained (1), encoder only.
        siblings: Factor of the siblings' trained weight in the output, 0 to 10; one-way models only.
        exponent: Exponent of the output map, 0 to 1, in place of the trained one; one-way models only.

    Returns:
        The folder.

    Raises:
        ModelError: No such models, some of different kinds, sizes or tokenizers, a folder that exists, or a two-way
            model, which has neither siblings nor an output map.
        ValueError: A factor or exponent beyond its range.
    """
    if folder.exists():
        raise ModelError(f"{folder}: expected a name for a new folder, found one that exists. Choose another.")
    if not (0 <= siblings <= 10 and 0 <= (exponent or 0.0) <= 1):
        raise ValueError(f"Expected siblings of 0 to 10 and an exponent of 0 to 1, found {siblings} and {exponent}.")
    network, tokenizer = _trained(trained)
    if not isinstance(network, TwoStage) and (siblings, exponent) != (1.0, None):
        raise ModelError(
            f"{trained}: expected a one-way model, which has siblings and an output map, found a two-way one."
        )
    states: list[Mapping[str, Tensor]] = [network.state_dict()]
    for other in others:
        another, read_by = _trained(other)
        if differing := _differing(network, another) or ("" if read_by.sha256 == tokenizer.sha256 else "tokenizer"):
            raise ModelError(
                f"{other}: expected a model like {trained}, found another {differing}. Average models that were "
                f"trained from {start} by one recipe with other seeds, before they are rotated."
            )
        states.append(another.state_dict())
    try:
        sizes = {name: size for name, size in start_settings(network).items() if name not in SET_LATER}
        before = load_start(StartConfig(model=start, **sizes), seed=0).network
        network.load_state_dict(interpolate(before.state_dict(), average(states), share))
    except (ValueError, RuntimeError) as error:  # a RecipeError, where a finished start has other sizes
        raise ModelError(f"{trained} was not trained from {start}: {error}") from error
    if isinstance(network, TwoStage):
        network.second_stage.sibling_output.weight.mul_(siblings)
        if exponent is not None:
            network.output_map.exponent.fill_(exponent)
        network.config = replace(network.config, name=folder.name)
        checkpoints.write(folder, network, tokenizer.serialised)
    else:
        checkpoint.write(folder, network, tokenizer.serialised)
    return folder


def merge_models(start: str, trained: Sequence[Path], folder: Path, *, share: float, name: str = "") -> Path:
    """Write the model on the way from a start to the mean of several trainings, in all tensors.

    `interpolate_models` leaves context path and gates as trained, since they are new in the models that it is for. Here
    the start is a finished model: with share 0 it is written again.

    Args:
        start: A bundled model, or a folder.
        trained: Folders of models that were trained from it.
        folder: Folder of the new model.
        share: From the start (0) to the mean (1).
        name: Name of the new model; by default the folder's.

    Returns:
        The folder.

    Raises:
        ModelError: There is no such model.

    Source: Wortsman et al. 2022 (WiSE-FT, model soups).
    """
    begun = load_start(StartConfig(model=start), seed=0).network.state_dict()
    networks = [_trained(each) for each in trained]
    network, tokenizer = networks[0]
    mean = average([each.state_dict() for each, _ in networks])
    network.load_state_dict(
        {
            name: torch.lerp(begun[name].float(), value.float(), share) if value.is_floating_point() else value
            for name, value in mean.items()
        }
    )
    if isinstance(network, TwoStage):
        network.config = replace(network.config, name=name or folder.name)
        checkpoints.write(folder, network, tokenizer.serialised)
    else:
        network.config = replace(network.config, name=name or folder.name)
        checkpoint.write(folder, network, tokenizer.serialised)
    return folder


def _trained(folder: Path) -> tuple[TwoStage | TwoWay, TextTokenizer]:
    if not (folder / checkpoints.CONFIG).is_file():
        raise ModelError(f"{folder}: expected the folder of a trained model, found no {checkpoints.CONFIG} in it.")
    network, tokenizer, _ = ModelSource.find(ModelName(base=str(folder))).network()
    return trainable(network), tokenizer


def _differing(network: TwoStage | TwoWay, other: TwoStage | TwoWay) -> str:
    """Return the reason why two networks cannot be averaged, such as "max_length"; empty if they can."""
    if isinstance(network, TwoStage) != isinstance(other, TwoStage):
        return "kind of attention"
    ours, theirs = ({**asdict(one.config), "name": ""} for one in (network, other))
    for name, value in ours.items():
        if value != theirs[name]:
            return name
    turned = [one.rotation for one in (network, other) if isinstance(one, TwoStage) and one.rotation is not None]
    return "rotation" if turned and not torch.equal(turned[0], turned[-1]) else ""
