"""The program lab.distil, from pairs to exported weights, with tiny models."""

import json

import numpy as np
import pytest
from made_sets import write_set
from tiny import WORDS, tiny_network, tiny_tokenizer
from typer.testing import CliRunner, Result

from cde_rag import CDEModel
from cde_rag.model import checkpoints
from lab.distil.__main__ import app
from lab.distil.teacher_shards import TeacherShards


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def files(tmp_path):
    """A teacher and a student, pairs, and a development set."""
    for name, seed in (("teacher", 1), ("student", 0)):
        checkpoints.write(tmp_path / name, tiny_network(seed=seed), tiny_tokenizer())
    random = np.random.default_rng(0)
    rows = [
        {"query": " ".join(random.choice(WORDS, size=3)), "document": " ".join(random.choice(WORDS, size=8))}
        for _ in range(60)
    ]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    write_set(tmp_path / "river", seed=0, words=WORDS[:12])
    (tmp_path / "sets.toml").write_text('documents = 20\nqueries = 5\n[[sets]]\npath = "river"\n')
    return tmp_path


def test_from_pairs_to_a_model_and_weights_to_continue_from(files):
    texts, output = files / "texts", files / "runs" / "small"
    told = run("prepare", files / "pairs.jsonl", "--output", texts, "--teacher", files / "teacher")
    shards = TeacherShards(texts)
    assert f"{shards.texts:,} texts in 1 shards, 0 of them embedded" in told.output
    found = json.loads(
        run(
            *("prepare", files / "pairs.jsonl", "--output", texts, "--teacher", files / "teacher"),
            *("--embed", 9, "--json"),
        ).stdout
    )
    assert (found["texts"], found["embedded"]) == (shards.texts, 1)
    command = ["run", texts, "--output", output, "--student", files / "student", "--texts", 2 * shards.texts]
    command += ["--development", files / "sets.toml", "--evaluate-every", 1, "--json"]
    found = json.loads(run(*command).stdout)
    assert found["texts"] == 2 * shards.texts
    lines = (output / "curve.csv").read_text().splitlines()
    assert lines[0].split(",")[-2:] == ["mean", "river"]
    assert [line.split(",")[0] for line in lines[1:]] == [str(number * shards.texts) for number in range(3)]
    assert CDEModel.from_pretrained(output / "model").config.name == "small"
    again = json.loads(run(*command).stdout)
    assert (again["model"], again["texts"]) == (found["model"], found["texts"])
    assert again["ndcg"] == pytest.approx(found["ndcg"], rel=1e-4)  # from the file, which has six digits
    file = files / "weights.safetensors"
    told = json.loads(run("export", texts, file, "--output", output, "--json").stdout)
    assert (told["texts"], told["bytes"]) == (2 * shards.texts, file.stat().st_size)
    command = ["run", texts, "--output", files / "runs" / "on", "--student", files / "student"]
    run(*command, "--texts", 2 * shards.texts + 1, "--from", file)
    assert (files / "runs" / "on" / "curve.csv").read_text().splitlines()[1].startswith(f"{2 * shards.texts},")


def test_wrong_names_are_told(files):
    texts = files / "texts"
    run("prepare", files / "pairs.jsonl", "--output", texts, "--teacher", files / "teacher")
    told = run("run", texts, "--output", files / "run", "--projection", "random", code=2)
    assert "there are leading, principal" in told.output
    told = run("run", files / "nowhere", "--output", files / "run", code=1)
    assert "Run python -m lab.distil prepare" in told.output
    told = run("run", texts, "--output", files / "run", "--student", files / "nobody", code=1)
    assert "Expected a bundled model" in told.output


@pytest.mark.parametrize("command", [[], ["prepare"], ["run"], ["export"]])
def test_help_fits_in_eighty_columns_and_is_not_cut(command):
    shown = CliRunner().invoke(app, [*command, "--help"], terminal_width=80).stdout
    assert "Usage:" in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert [line for line in shown.partition("Commands:")[2].splitlines() if line.endswith("...")] == []
