"""Word embeddings read row by row equal those of the table that is read at once."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from cde_rag.errors import ModelError
from cde_rag.models.files.stored_tensors import SCALE, float_state
from cde_rag.models.files.word_embeddings import WordEmbeddings, embedded
from cde_rag.models.one_way.checkpoint import quantise
from cde_rag.models.pair.checkpoint import pack

NAME, ROWS, DIM = "embeddings.word.weight", 50, 64
IDS = st.lists(st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=9), min_size=1, max_size=5)


def content(kind: str) -> bytes:
    """Return a file with a table, and a tensor before and after it."""
    table = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0))
    match kind:
        case "int8":
            stored = quantise({NAME: table})
        case "four bits":
            codes, scales = pack(table)
            stored = {NAME: codes, NAME + SCALE: scales}
        case _:
            stored = {NAME: table.to(getattr(torch, kind))}
    return save({"a": torch.zeros(3), **stored, "z": torch.ones(5)})


@pytest.mark.parametrize("kind", ["int8", "four bits", "float32", "float16", "bfloat16"])
@given(rows=IDS)
def test_rows_are_those_of_the_table(
    kind: str, rows: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"{kind}.safetensors"
    path.write_bytes(content(kind))
    table = float_state(path.read_bytes())[NAME]
    words, mask = embedded(WordEmbeddings([path], NAME), rows)
    assert words.dtype == np.float32
    for number, row in enumerate(rows):
        np.testing.assert_array_equal(words[number, : len(row)], table[row])
        assert mask[number].tolist() == [1.0] * len(row) + [0.0] * (mask.shape[1] - len(row))


def test_the_table_is_in_one_of_several_files(tmp_path: Path) -> None:
    (tmp_path / "layers").write_bytes(save({"a": torch.zeros(3)}))
    (tmp_path / "vocabulary").write_bytes(content("int8"))
    words = WordEmbeddings([tmp_path / "layers", tmp_path / "vocabulary"], NAME)
    assert words(np.zeros((2, 3), np.int64)).shape == (2, 3, DIM)


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (save({"a": torch.zeros(3)}), "Expected the weight embeddings.word.weight"),
        (content("float32")[:40], "Expected safetensors at"),
        (content("float32")[:-1000], "Expected safetensors at"),
        (b"", "Expected safetensors at"),
        (save({NAME: torch.zeros(3, 4, dtype=torch.float64)}), "in codes or in floats"),
    ],
)
def test_a_file_without_the_table(damaged: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(damaged)
    with pytest.raises(ModelError, match=message):
        WordEmbeddings([path], NAME)
    with pytest.raises(ModelError, match="Expected safetensors at"):
        WordEmbeddings([tmp_path / "none"], NAME)
