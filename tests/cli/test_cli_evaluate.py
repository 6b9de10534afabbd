"""evaluate prints the evaluation: as a table, or as the JSON it makes of itself."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plain_model import write_transformer
from tiny import WORDS

from cde_rag.cli.answers import print_way
from cde_rag.evaluation import evaluate


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


def test_json_is_the_evaluation(run, folder: Path, model_folder: Path):
    systems = ["own", "null", "bm25"]
    command = ("evaluate", folder, "--json", "--seed", 1, "--seed", 2, "--context-size", 5)
    found = json.loads(run(*command, *(word for name in systems for word in ("--system", name))).stdout)
    expected = evaluate([folder], model=model_folder, systems=systems, seeds=[1, 2], context_size=5)
    whole = json.loads(json.dumps(expected.to_json()))
    for one in (found, whole):
        assert one["comparison"].pop("costs")["own"]["seconds"] > 0  # measured each time
    assert found == whole
    assert set(found["ndcg@10"]) == set(systems)
    assert all(0 <= share <= 1 for share in found["ndcg@10"].values())


def test_a_second_model_has_rows_of_its_own(run, folder: Path, model_folder: Path, tmp_path: Path):
    systems = ("--system", "own", "--system", "bm25")
    found = run(
        "evaluate", folder, "--model", write_transformer(tmp_path / "plain"), *systems, "--plot", tmp_path / "p.svg"
    )
    starts = [line.split("  ")[0] for line in found.stdout.splitlines()]
    assert starts[2:5] == ["own", "bm25", f"own --model {model_folder}"]
    assert found.stdout.splitlines()[-1].startswith("3 questions are too few to choose by")
    assert (tmp_path / "p.svg").read_text().count("<circle") == 3


def test_a_wrong_second_model_is_found_before_anything_is_embedded(
    run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("embedded")

    monkeypatch.setattr("cde_rag.evaluation.evaluate", never)
    monkeypatch.setattr("cde_rag.cli.answers.indexed", never)
    pages = tmp_path / "site"
    (pages / "pages").mkdir(parents=True)
    (pages / "pages/a.md").write_text("# Boats\n\nA boat is moored at the bank.\n")
    answer = {"page": "a.md", "quote": "moored at the bank"}
    (pages / "questions.jsonl").write_text(json.dumps({"question": "Where is it?", "answers": [answer]}) + "\n")
    for given in (folder, pages):
        found = run("evaluate", given, "--model", "cde-mini", "--model", tmp_path / "gone", code=1)
        assert str(tmp_path / "gone") in found.stderr


def test_the_advice_quotes_a_folder_with_a_space(run, folder: Path, tmp_path: Path):
    model = write_transformer(tmp_path / "a model")
    found = run("evaluate", folder, "--system", "own", "--model", "cde-mini", "--model", model)
    assert f"own --model '{model}'" in found.stdout


def test_siblings_of_a_plain_model_are_no_option_of_the_command_index(capsys: pytest.CaptureFixture[str]):
    """Whose index would not give them their weight."""
    found: Any = SimpleNamespace(taken="parents --model b", advice="Take it.", is_enough=True)
    print_way(found, "cde-rag index x", "", {"parents": "--parent-key page"}, plain=["--model b"])
    assert capsys.readouterr().out.startswith("parents --model b: in Python, a collection with ArithmeticEmbedder")
    print_way(found, "cde-rag index x", "", {"parents": "--parent-key page"}, plain=["--model c"])
    assert "cde-rag index x --parent-key page --model b" in capsys.readouterr().out


def test_people_get_a_table(run, folder: Path):
    result = run("evaluate", folder, "--system", "null", "--progress")
    assert "birds" in result.stdout
    assert "null" in result.stdout
    assert "1/1" in result.stderr


def test_unknown_systems_are_wrong_usage(run, folder: Path):
    assert "there are own, " in run("evaluate", folder, "--system", "oracle", code=2).stderr


def test_a_folder_without_a_set_is_named(run, tmp_path: Path):
    (tmp_path / "nothing").mkdir()
    assert "nothing" in run("evaluate", tmp_path / "nothing", code=1).stderr


def test_systems_that_do_not_apply_are_named(run, folder: Path):
    result = run("evaluate", folder, "--system", "bm25", "--system", "headers", "--system", "parents")
    assert "Not run, since no set or model meets the requirements: headers, parents" in result.stderr
    assert "--parent-key" in result.stderr
    assert "bm25" in result.stdout
    assert "headers" not in result.stdout
