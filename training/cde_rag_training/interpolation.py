"""Between the start and what was trained."""

from collections.abc import Mapping

import torch
from torch import Tensor

ENCODER = ("second_stage.layers.", "second_stage.backbone.native.")


def interpolate(start: Mapping[str, Tensor], trained: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The trained state, its second stage's encoder taken back towards the start.

    In between lies what a short training adds without what it forgets. The path of the context, the gates and the first
    stage stay as trained: where training starts they are new.

    Args:
        start: A network's state.
        trained: The same network's, later.
        share: Of the way from start (0) to trained (1).

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
