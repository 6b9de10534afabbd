"""The examples run, and what they say is so."""

import re
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag.evaluation.demo_questions import questions
from cde_rag.model import checkpoints
from cde_rag.records import Record

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def stand_in() -> Any:
    """A plain model that counts letters."""

    def embed(texts: Sequence[str]) -> np.ndarray:
        counts = np.array([[text.lower().count(letter) + 1 for letter in "etaoinsh"] for text in texts], np.float32)
        return counts / np.linalg.norm(counts, axis=1, keepdims=True)

    return embed


def documents() -> list[Record]:
    answers = sorted({answer for question in questions() for answer in question.answers})
    draw = np.random.default_rng(0)
    return [
        Record(name, " ".join(draw.choice(WORDS, 6)), name, {"module": name.split(".")[0]})
        for name in [*answers, *(f"other{number // 3}.f{number}" for number in range(30))]
    ]


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_an_existing_collection_becomes_contextual_and_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    example = runpy.run_path(str(EXAMPLES / "recontextualize_existing_qdrant.py"))
    client, main = QdrantClient(":memory:"), example["main"]
    given = {"MiniLM": stand_in, "documentation": documents, "QdrantClient": lambda _: client}
    for name, value in given.items():
        monkeypatch.setitem(main.__globals__, name, value)
    main(["--documents", "60", "--model", str(tmp_path / "model")])
    said = capsys.readouterr().out
    points = client.count("python_documentation").count
    assert 60 <= points <= 62
    assert f"{points} records beside" in said
    assert re.search(r"users meanwhile: \d+ answered, 0 otherwise than before, 0 failed\n", said)
    figures = dict(re.findall(r"^(\S.*?) {2,}([01]\.\d{3})", said, flags=re.MULTILINE))
    assert figures["MiniLM, all taken back"] == figures["MiniLM, as it was"]
    assert figures["rolled back"] == figures["contextual"]
    assert figures.keys() == {
        "MiniLM, as it was", "BM25", "contextual", "another context", "rolled back", "MiniLM, all taken back"
    }  # fmt: skip
    assert len(re.findall(r"\([-+]\d\.\d{3} … [-+]\d\.\d{3}\)", said)) == 4
    assert [one.name for one in client.get_collections().collections] == ["python_documentation"]
    (point,), _ = client.scroll("python_documentation", limit=1)
    assert set(point.payload or {}) == {"page_content", "metadata"}
