"""Golden numbers of the paper's code; on the project's own machines only."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor


def golden(shared_data: Path, name: str) -> dict[str, Tensor]:
    """The tensors of `goldens/<name>.safetensors`."""
    return load_file(shared_data.parent / "goldens" / f"{name}.safetensors")


def golden_json(shared_data: Path, name: str) -> dict[str, Any]:
    """The object of `goldens/<name>.json`."""
    return json.loads((shared_data.parent / "goldens" / f"{name}.json").read_text())
