"""The program lab.mteb prints the sweep: as a table, or as the JSON it makes of itself."""

import json
from pathlib import Path

import pytest
from tiny import WORDS, tiny_network, tiny_tokenizer
from typer.testing import CliRunner, Result

from cde_rag.models.one_way import checkpoint as checkpoints
from lab.mteb import local_retrieval_task, sweep
from lab.mteb.__main__ import app


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["run", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    checkpoints.write(tmp_path / "model", tiny_network(), tiny_tokenizer())
    return tmp_path / "model"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A set of twenty documents and three queries."""
    path = tmp_path / "birds"
    (path / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "text": f"{WORDS[i]} {WORDS[-1 - i]}"} for i in range(20)]
    queries = [{"_id": f"q{i}", "text": WORDS[i]} for i in range(3)]
    (path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{i}\td{i}\t1\n" for i in range(3)))
    return path


def test_json_is_the_sweep(folder: Path, model_folder: Path, tmp_path: Path):
    command = (folder, "--model", model_folder, "--json", "--seed", 1, "--seed", 2, "--context-size", 5)
    command += ("--output", tmp_path / "out")
    found = json.loads(run(*command).stdout)
    expected = sweep([local_retrieval_task(folder)], model=model_folder, context_size=5, seeds=[1, 2])
    assert found == json.loads(json.dumps(expected.to_json()))
    assert len(list((tmp_path / "out").rglob("birds.json"))) == 2
    assert json.loads(run(*command).stdout) == found


def test_other_contexts(folder: Path, model_folder: Path, tmp_path: Path):
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"query": "a", "document": f"{WORDS[i]} {WORDS[i + 1]}"} for i in range(8)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [row["document"] for row in rows]
    for given, context in ((pairs, texts), ("null", "null")):
        found = json.loads(
            run(folder, "--model", model_folder, "--json", "--context-size", 5, "--context", given).stdout
        )
        expected = sweep([local_retrieval_task(folder)], model=model_folder, context_size=5, context=context)
        assert found["mean"] == expected.mean
    assert "nothing" in run(folder, "--model", model_folder, "--context", tmp_path / "none.jsonl", code=1).stderr


def test_people_get_a_table(folder: Path, model_folder: Path):
    result = run(folder, "--model", model_folder, "--progress")
    assert "birds" in result.stdout
    assert "ndcg_at_10" in result.stdout
    assert "1/1" in result.stderr


def test_unknown_tasks_are_one_sentence():
    assert "Did you mean: 'SciFact'" in run("SciFaxt", code=1).stderr
