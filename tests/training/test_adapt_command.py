"""cde-rag-train adapt: what it reads, what it tells, and its exit codes."""

import json
from pathlib import Path

import numpy as np
import pytest
from prepared_stub import stub_vectors
from test_adaptation import records
from tiny import tiny_network, tiny_tokenizer
from training_run import Run, one_sentence

from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag_training.adapt import adaptation
from cde_rag_training.cli.adapt import NOT_BETTER


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    rows = [{"id": one.id, "title": one.title, "text": one.text} for one in records()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    monkeypatch.setattr(adaptation, "minilm", lambda max_length: stub_vectors)
    monkeypatch.setattr(adaptation, "_minutes", lambda *_, **__: 0.02)
    return folder


def decide(monkeypatch: pytest.MonkeyPatch, ndcg: float) -> None:
    monkeypatch.setattr(adaptation, "_scores", lambda _, data: np.full(len(data.queries), ndcg))


def test_a_dry_run_shows_the_pairs_and_writes_nothing(run: Run, corpus: Path, tmp_path: Path):
    done = run("adapt", corpus, "--output", tmp_path / "mine", "--dry-run")
    assert done.stderr.startswith("Pairs: 160 by title\n")
    assert done.stderr.count(" → ") == 10
    told = json.loads(run("adapt", corpus, "--output", tmp_path / "mine", "--dry-run", "--json").stdout)
    assert told["made"] == {"title": 160}
    assert not (tmp_path / "mine").exists()


def test_a_better_model_is_the_folder(run: Run, corpus: Path, tiny: Path, tmp_path: Path, monkeypatch):
    decide(monkeypatch, 1.0)
    done = run("adapt", corpus, "--output", tmp_path / "mine", "--model", tiny)
    assert "The adapted model is better" in done.stdout
    assert CDEModel.from_pretrained(tmp_path / "mine").identity.name == "mine"


def test_a_recipe_of_ones_own(run: Run, corpus: Path, tiny: Path, tmp_path: Path, monkeypatch):
    decide(monkeypatch, 1.0)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[phases]]\nname = "mine"\nloss = { kind = "graded", temperature = 0.1, bias = -3.0 }\n')
    done = run("adapt", corpus, "--output", tmp_path / "mine", "--model", tiny, "--config", recipe, "--json")
    told = json.loads(done.stdout)
    assert told["outcome"].startswith("Of 100 such queries 100 find a right passage")
    log = (tmp_path / "mine/work/run/log.csv").read_text()
    assert "\nmine,1," in log
    both = run("adapt", corpus, "--output", tmp_path / "b", "--config", recipe, "--preset", "gte", code=2)
    assert "give --config or --preset, not both" in both.stderr


def test_no_better_has_an_exit_code_of_its_own(run: Run, corpus: Path, tiny: Path, tmp_path: Path, monkeypatch):
    decide(monkeypatch, 0.0)
    done = run("adapt", corpus, "--output", tmp_path / "mine", "--model", tiny, "--json", code=NOT_BETTER)
    told = json.loads(done.stdout)
    assert told["verdict"].startswith("Keep your model")
    assert told["model"].endswith("mine/not-better")


def test_what_cannot_be_used_is_one_sentence(run: Run, corpus: Path, tmp_path: Path):
    lines = corpus.read_text().splitlines()
    few, bad = tmp_path / "few.jsonl", tmp_path / "bad.jsonl"
    few.write_text("\n".join(lines[:20]))
    bad.write_text("\n".join([*lines, "{"]))
    assert "Give more documents" in one_sentence(run("adapt", few, "--output", tmp_path / "a", "--dry-run", code=1))
    assert "line 161" in one_sentence(run("adapt", bad, "--output", tmp_path / "a", "--dry-run", code=1))
    told = run("adapt", corpus, "--output", tmp_path / "a", "--model", "cde-mini-7", code=1)
    assert "found 'cde-mini-7'" in told.stderr.splitlines()[-1]
    assert not (tmp_path / "a").exists()  # the name is mended, and the same folder named again
    passed = run("adapt", bad, "--output", tmp_path / "a", "--dry-run", "--skip-bad").stderr
    assert passed.startswith("Skipped 1 bad ones:\n")
