"""AdamW with a learning rate for each part of the model."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cde_rag_training.config import AdaptersConfig, RatesConfig

LAYERS = ("second_stage.layers.", *(f"second_stage.backbone.native.{each}." for each in ("layers", "encoder.layer")))
STEADY = 2000  # updates without an overflow, after which the loss is scaled more
ADAPTER = "lora_"  # in the names of peft's parameters


class Place(NamedTuple):
    """Position of a parameter in the model.

    Attributes:
        part: A rate's name: "encoder", "embeddings", "first_stage", "context" or "gates".
        height: Layers of the second stage's encoder above it.
    """

    part: str
    height: int = 0


def place_of(name: str, layers: int) -> Place:
    """Return a parameter's part and height, by its name.

    Args:
        name: As in the network's state, of either kind of context attention.
        layers: Number of layers of the second stage.
    """
    if name.startswith("first_stage."):
        return Place("first_stage")
    for prefix in LAYERS:
        if name.startswith(prefix):
            return Place("encoder", layers - 1 - int(name.removeprefix(prefix).split(".")[0]))
    if name.startswith(("embeddings.", "second_stage.backbone.native.embeddings.")):
        return Place("embeddings")
    if name.startswith("second_stage.backbone."):
        return Place("encoder")
    if name.startswith(("second_stage.gates", "output_map.")):
        return Place("gates")
    return Place("context")


class ParameterGroup(NamedTuple):
    """Parameters that share a learning rate and a weight decay.

    Attributes:
        part: Part of the model.
        rate: Peak learning rate.
        decay: Weight decay.
        parameters: By name, in the network's order.
    """

    part: str
    rate: float
    decay: float
    parameters: dict[str, nn.Parameter]


def groups_of(network: nn.Module, layers: int, rates: RatesConfig, adapters: AdaptersConfig) -> list[ParameterGroup]:
    """Group the trained parameters; those without a rate are frozen here, all others unfrozen.

    Weights of linear layers and embedding tables decay; norms, biases, gates, roles and latents do not.

    Args:
        network: Network of either kind.
        layers: Number of layers of its second stage.
        rates: Learning rates of its parts.
        adapters: If they have a rank, the encoder is frozen and they are trained in its place.
    """
    decaying = {
        f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Embedding)
    }
    groups: dict[tuple[str, float, float], ParameterGroup] = {}
    for name, parameter in network.named_parameters():
        place = place_of(name, layers)
        rate = _rate(name, place, rates, adapters)
        parameter.requires_grad_(rate > 0)
        if rate > 0:
            decay = rates.weight_decay if name in decaying else 0.0
            key = (place.part, rate, decay)
            groups.setdefault(key, ParameterGroup(*key, {})).parameters[name] = parameter
    return list(groups.values())


def _rate(name: str, place: Place, rates: RatesConfig, adapters: AdaptersConfig) -> float:
    if ADAPTER in name:
        return adapters.rate
    if place.part != "encoder":
        return float(getattr(rates, place.part))
    return 0.0 if adapters.rank else rates.encoder * rates.layer_decay**place.height


class LossScale(NamedTuple):
    """Factor of the loss that keeps the gradients of float16 from becoming zero.

    Attributes:
        value: The factor.
        updates: Updates since it changed.

    Source: Micikevicius et al. 2018 (Mixed Precision Training) §3.2; numbers of `torch.amp.GradScaler`.
    """

    value: float = 2.0**16
    updates: int = 0

    def after(self, norm: float) -> "LossScale":
        """Return the factor for the next update: half of it if the norm overflowed, twice after long without."""
        if not math.isfinite(norm):
            return LossScale(max(self.value / 2, 1.0))
        return LossScale(2 * self.value) if self.updates + 1 == STEADY else LossScale(self.value, self.updates + 1)


class Optimiser:
    """AdamW over groups, in float32.

    Args:
        groups: The trained parameters.
        clip: Largest norm of all gradients together.
    """

    def __init__(self, groups: list[ParameterGroup], *, clip: float) -> None:
        self.groups, self._clip = groups, clip
        self.names = [name for group in groups for name in group.parameters]
        self.parameters: list[Tensor] = [value for group in groups for value in group.parameters.values()]
        self._adamw = torch.optim.AdamW(
            [
                {"params": list(group.parameters.values()), "lr": group.rate, "weight_decay": group.decay}
                for group in groups
            ],
            fused=True,
        )

    def zero_grad(self) -> None:
        """Set every gradient to zero, not to None, so that an update does not depend on the computed parts."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def clip(self, scale: float = 1.0) -> float:
        """Clip the global gradient norm; return the norm before clipping.

        Args:
            scale: Factor of the loss, by which all gradients are divided first.
        """
        if scale != 1:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad /= scale
        return float(nn.utils.clip_grad_norm_(self.parameters, self._clip))

    def step_scaled(self, factor: float, norm: float, scale: LossScale) -> LossScale:
        """Apply one update, unless the scaled gradients overflowed; return the scale of the next.

        Args:
            factor: Factor of every learning rate.
            norm: Norm that `clip` returned.
            scale: Scale of the loss that the gradients are of.
        """
        if math.isfinite(norm):
            self.step(factor)
        return scale.after(norm)

    def step(self, factor: float) -> None:
        """Apply one update.

        Args:
            factor: Factor of every learning rate.
        """
        for group, options in zip(self.groups, self._adamw.param_groups, strict=True):
            options["lr"] = group.rate * factor
        self._adamw.step()

    def rates(self, factor: float) -> dict[str, float]:
        """Return the highest learning rate of each part."""
        highest: dict[str, float] = {}
        for group in self.groups:
            highest[group.part] = max(highest.get(group.part, 0.0), group.rate * factor)
        return highest

    def state(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the optimiser's state tensors, by parameter name and kind."""
        for number, values in self._adamw.state_dict()["state"].items():
            for kind, value in values.items():
                yield f"{self.names[number]}|{kind}", value

    def restore(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors of `state`."""
        numbers = {name: number for number, name in enumerate(self.names)}
        values: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            name, kind = key.split("|")
            values.setdefault(numbers[name], {})[kind] = value.clone()
        self._adamw.load_state_dict({"state": values, "param_groups": self._adamw.state_dict()["param_groups"]})
