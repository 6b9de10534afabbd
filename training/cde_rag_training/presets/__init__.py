"""Recipes that come with the package."""

from importlib.resources import as_file, files
from pathlib import Path

from cde_rag_training.config import TrainingConfig

PRESETS = ("paper-small", "paper-large", "gte", "cde-mini", "laptop")


def preset_text(name: str) -> str:
    """Return the text of a preset's file, comments included.

    Args:
        name: Name of `PRESETS`.
    """
    return (files("cde_rag_training.presets") / f"{name}.toml").read_text(encoding="utf-8")


def preset(name: str) -> TrainingConfig:
    """Load a preset.

    Args:
        name: Name of `PRESETS`.
    """
    with as_file(files("cde_rag_training.presets") / f"{name}.toml") as path:
        return TrainingConfig.from_toml(Path(path))
