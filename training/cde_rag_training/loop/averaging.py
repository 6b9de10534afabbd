"""The moving average of weights, which is often better than the last weights."""

from collections.abc import Mapping

import torch
from torch import Tensor

WARMUP = 9  # updates; the first averages follow the weights closely


class WeightAverage:
    """Exponential moving average of the trained parameters.

    Args:
        parameters: By name; looked at after every update.
        decay: Share of the old average that stays, at most n / (n + 9) at update n.

    Source: Polyak & Juditsky 1992; the warm-up as in TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, parameters: Mapping[str, Tensor], *, decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self.weights = {name: parameter.detach().clone() for name, parameter in parameters.items()}

    @torch.no_grad()
    def update(self, number: int) -> None:
        """Update the average with the weights after an update.

        Args:
            number: Updates done, at least 1.
        """
        decay = min(self._decay, number / (number + WARMUP))
        for name, parameter in self._parameters.items():
            self.weights[name].lerp_(parameter, 1 - decay)

    @torch.no_grad()
    def apply(self) -> None:
        """Put the average in the weights' place."""
        for name, parameter in self._parameters.items():
            parameter.copy_(self.weights[name])

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor]) -> None:
        """Restore an average from a checkpoint."""
        for name, value in weights.items():
            self.weights[name].copy_(value)
