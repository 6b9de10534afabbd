"""The code of docs/interop.md runs, in its order, with a small model in place of the one from the hub."""

import re
from pathlib import Path
from typing import Any

import pytest
from plain_model import write_transformer

from cde_rag.embedders.contextual import ContextualEmbedder

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "interop.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")
def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_transformer(tmp_path / "plain", dim=384)
    texts = [f"Recipe {number}: how to parse the date of day {number} of a year." for number in range(70)]
    names: dict[str, Any] = {"texts": texts}
    for code in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        exec(code.replace("sentence-transformers/all-MiniLM-L6-v2", "plain"), names)
    assert names["notes"].embedder.fingerprint == names["plain"].fingerprint
    assert names["scores"].shape == (1, 70)
    assert isinstance(names["model"][0].embedder, ContextualEmbedder)
    assert len(names["hits"]) == 10
    assert names["vectors"].features["embedding"].length == 384
    assert names["vectors"].num_rows == 71
