"""Fixtures of haystack-cde. The tiny model is that of the core's tests (`tests/tiny.py`)."""

import os
from pathlib import Path

import pytest
from tiny import tiny_network, tiny_tokenizer

from cde_rag.models.one_way import checkpoint as checkpoints

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before Haystack is imported: tests need no network


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two layers of sixteen dimensions."""
    folder: Path = tmp_path_factory.mktemp("haystack") / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return str(folder)
