"""Two-stage gradient caching: a large batch's gradients in the memory of one mini-batch, equal tensor by tensor.

The model is given as three functions, so that any two-stage model fits:

first    context documents → first-stage vectors (contexts, and siblings where there are any)
prepare  all first-stage vectors → input of the second stage, once per update; small, so its graph is kept
second   texts, prepared → embeddings

Both passes, without and with gradients, use the same random numbers: dropout is allowed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

MiniBatch = TypeVar("MiniBatch")
FirstMiniBatch = TypeVar("FirstMiniBatch")
Loss = Callable[[Float[Tensor, "texts dim"]], Float[Tensor, ""]]


@dataclass(frozen=True)
class _RandomState:
    """The state of the generators that dropout draws from: the CPU's, and that of the device at hand."""

    device: torch.device
    cpu: Tensor
    accelerator: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> "_RandomState":
        on_cpu = device.type == "cpu"
        return cls(device, torch.get_rng_state(), None if on_cpu else torch.get_device_module(device).get_rng_state())

    def restore(self) -> None:
        torch.set_rng_state(self.cpu)
        if self.accelerator is not None:
            torch.get_device_module(self.device).set_rng_state(self.accelerator)


class CachedStage(Generic[MiniBatch]):
    """Stage of the model, run first without gradients and then again with them.

    Args:
        function: A mini-batch and what the stage is given → one row for each text of the mini-batch.
        device: Device of the stage.
    """

    def __init__(
        self, function: Callable[[MiniBatch, Sequence[Tensor]], Float[Tensor, "texts dim"]], *, device: str = "cpu"
    ) -> None:
        self._function, self._device = function, torch.device(device)
        self._states: list[_RandomState] = []

    def forward_no_grad(
        self, mini_batches: Sequence[MiniBatch], given: Sequence[Tensor]
    ) -> Float[Tensor, "all_texts dim"]:
        """Compute the embeddings of all mini-batches without a graph."""
        self._states, vectors = [], list[Tensor]()
        with torch.no_grad():
            for mini_batch in mini_batches:
                self._states.append(_RandomState.now(self._device))
                vectors.append(self._function(mini_batch, given))
        return torch.cat(vectors)

    def forward_backward(
        self,
        mini_batches: Sequence[MiniBatch],
        given: Sequence[Tensor],
        gradients: Float[Tensor, "all_texts dim"],
    ) -> None:
        """Send the gradients of all embeddings through the stage, one mini-batch at a time.

        They add up in the parameters' `grad` and in that of `given`; last mini-batch first, which is the order in which
        autograd adds them up.
        """
        end = len(gradients)
        after = _RandomState.now(self._device)
        for mini_batch, state in zip(reversed(mini_batches), reversed(self._states), strict=True):
            state.restore()
            vectors = self._function(mini_batch, given)
            torch.autograd.backward(vectors, gradients[end - len(vectors) : end])
            end -= len(vectors)
        after.restore()


def loss_and_gradient(
    embeddings: Float[Tensor, "texts dim"], loss: Loss
) -> tuple[Float[Tensor, ""], Float[Tensor, "texts dim"]]:
    """Compute the loss of finished embeddings, and its gradient with respect to them."""
    leaf = embeddings.detach().requires_grad_()
    value = loss(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in tensors]


def _backward_from(tensors: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Continue the backward pass from the gradients accumulated in `leaves`."""
    reached = [(tensor, leaf.grad) for tensor, leaf in zip(tensors, leaves, strict=True) if leaf.grad is not None]
    if reached:
        torch.autograd.backward([tensor for tensor, _ in reached], [gradient for _, gradient in reached])


def second_stage_step(
    second: CachedStage[MiniBatch], prepared: Sequence[Tensor], texts: Sequence[MiniBatch], loss: Loss
) -> Float[Tensor, ""]:
    """Add one update's gradients to the second stage's parameters and to the inputs of `prepared`.

    Used alone if the first stage is frozen and its vectors are looked up.

    Args:
        second: The second stage.
        prepared: Its input, with its graph.
        texts: Queries and documents in mini-batches of any size, in the order that `loss` expects.
        loss: Loss of all embeddings together.

    Returns:
        The loss, detached.

    Source: Gao et al. 2021 (GradCache).
    """
    given = _leaves(prepared)
    embeddings = second.forward_no_grad(texts, given)  # (texts, dim)
    value, gradient = loss_and_gradient(embeddings, loss)
    second.forward_backward(texts, given, gradient)
    _backward_from(prepared, given)
    return value


def two_stage_step(
    first: CachedStage[FirstMiniBatch],
    prepare: Callable[[Float[Tensor, "context dim"]], Sequence[Tensor]],
    second: CachedStage[MiniBatch],
    context: Sequence[FirstMiniBatch],
    texts: Sequence[MiniBatch],
    loss: Loss,
) -> Float[Tensor, ""]:
    """Add one update's gradients to every parameter of the model.

    Args:
        first: The first stage; its only input are its mini-batches.
        prepare: First-stage vectors of all context mini-batches, in order → input of the second stage.
        second: The second stage.
        context: Texts of the first stage, at least one, in mini-batches of any size.
        texts: Queries and documents in mini-batches of any size, in the order that `loss` expects.
        loss: Loss of all embeddings together.

    Returns:
        The loss, detached.

    Source: paper §4.2, two-stage gradient caching.
    """
    vectors = first.forward_no_grad(context, ()).requires_grad_()  # (context, dim)
    value = second_stage_step(second, prepare(vectors), texts, loss)
    if vectors.grad is not None:
        first.forward_backward(context, (), vectors.grad)
    return value
