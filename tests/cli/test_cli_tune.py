"""tune: the weight of hybrid search, written to the collection where it surely gains."""

import json
from pathlib import Path
from typing import Any

import pytest

from cde_rag import Collection
from cde_rag.stores.faiss import FaissStore

WORDS = "river bank money loan flood water city house green stone tree road bird fish rain snow wind".split()


@pytest.fixture
def collection(run, tmp_path: Path) -> Path:
    """Each record has a name that no vector of the tiny model knows."""
    rows = [
        {"id": f"d{number}", "text": f"{WORDS[number % 17]} {WORDS[number * 5 % 17]} name{number}"}
        for number in range(60)
    ]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run("index", tmp_path / "records.jsonl", tmp_path / "papers.faiss")
    return tmp_path / "papers.faiss"


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    return written(
        tmp_path / "judged", {f"{WORDS[number * 3 % 17]} of name{number}": f"d{number}" for number in range(60)}
    )


def written(folder: Path, answers: dict[str, str]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    rows = [json.dumps({"_id": f"q{number}", "text": query}) for number, query in enumerate(answers)]
    (folder / "queries.jsonl").write_text("\n".join(rows))
    lines = ["query-id\tcorpus-id\tscore", *(f"q{number}\t{id_}\t1" for number, id_ in enumerate(answers.values()))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines))
    return folder


def weight_of(run: Any, collection: Path) -> float:
    return json.loads(run("inspect", collection, "--json").stdout)["hybrid_weight"]


def test_a_sure_weight_is_written_and_searches_use_it(run, collection: Path, judged: Path, model_folder: Path):
    found = json.loads(run("tune", collection, judged, "--dry-run", "--json").stdout)
    assert found["written"] is False
    assert "is unchanged, since this is a dry run" in run("tune", collection, judged, "--dry-run").stdout
    assert weight_of(run, collection) == 0.65
    result = run("tune", collection, judged)
    assert result.stdout.startswith("60 queries, NDCG@10 × 100: vectors ")
    assert f"hybrid search uses {found['weight']:g} from now on" in result.stdout
    assert weight_of(run, collection) == found["weight"] < 0.65
    with Collection.open(FaissStore(collection), model=model_folder) as papers:
        query = "green of name0"
        expected = papers.searcher("hybrid", weight=found["weight"]).search(query, 5)
        assert papers.search(query, 5, by="hybrid") == expected
        assert expected != papers.searcher("hybrid", weight=0.65).search(query, 5)
    hits = json.loads(run("search", collection, query, "-k", "5", "--json").stdout)["hits"]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected])
    assert run("verify", collection).stdout.endswith("is intact.\n")


def test_lines_with_ids_or_quotes_choose_the_same_weight(run, collection: Path, judged: Path, tmp_path: Path):
    expected = json.loads(run("tune", collection, judged, "--dry-run", "--json").stdout)
    rows = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    queries = [json.loads(line)["text"] for line in (judged / "queries.jsonl").read_text().splitlines()]
    ids = [{"question": query, "answers": [{"id": row["id"]}]} for query, row in zip(queries, rows, strict=True)]
    quotes = [
        {"question": query, "answers": [{"page": row["id"], "quote": row["text"]}]}
        for query, row in zip(queries, rows, strict=True)
    ]
    for name, lines in (("ids", ids), ("quotes", quotes)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        assert json.loads(run("tune", collection, file, "--dry-run", "--json").stdout) == expected


def test_the_gain_is_over_the_weight_that_the_collection_has(run, collection: Path, judged: Path):
    run("tune", collection, "--weight", "1")
    found = json.loads(run("tune", collection, judged, "--json").stdout)
    assert found["current_weight"] == 1
    assert found["current"] == found["figures"]["1.0"]
    assert found["written"] is True
    assert weight_of(run, collection) == found["weight"] < 1
    again = run("tune", collection, judged).stdout
    assert f"by its weight {found['weight']:g}" in again
    assert "is unchanged: it has this weight" in again


def test_a_weight_is_written_by_hand(run, collection: Path):
    assert "weighs vectors 0.4" in run("tune", collection, "--weight", "0.4").stdout
    assert weight_of(run, collection) == 0.4
    assert json.loads(run("tune", collection, "--weight", "1", "--json").stdout) == {"weight": 1.0, "written": True}
    assert weight_of(run, collection) == 1


def test_what_is_not_sure_is_not_written(run, collection: Path, tmp_path: Path):
    answers = {f"{WORDS[number % 17]} elsewhere": f"d{number * 7 % 60}" for number in range(40)}
    answers |= {f"{word} and {word}": "d1" for word in WORDS}
    noise = dict(list(answers.items())[:25])
    assert "is unchanged" in run("tune", collection, written(tmp_path / "noise", noise)).stdout
    run("tune", collection, "--weight", "0.7")
    some = noise | {f"{WORDS[number * 3 % 17]} of name{number}": f"d{number}" for number in range(4)}
    found = run("tune", collection, written(tmp_path / "some", some)).stdout
    assert "is unchanged, since the gain is not sure" in found
    assert weight_of(run, collection) == 0.7


def test_wrong_use_says_what_to_do(run, collection: Path, judged: Path, tmp_path: Path):
    assert "JUDGED" in run("tune", collection, code=2).stderr
    assert "JUDGED" in run("tune", collection, judged, "--weight", "0.5", code=2).stderr
    assert "--weight" in run("tune", collection, "--weight", "1.5", code=2).stderr
    strange = written(tmp_path / "strange", {f"river {number}": f"x{number}" for number in range(30)})
    error = run("tune", collection, strange, code=1).stderr
    assert "Expected judgments of ids that the collection has, found 'x0' and 29 others" in error
    some = written(tmp_path / "some", {f"river {number}": f"d{number}" for number in range(70, 40, -1)})
    result = run("tune", collection, some, code=1)
    assert "11 of 30 questions are left out: 11 × a question for an id that the corpus does not have" in result.stderr
    assert "at least 20 judged queries to choose a weight, found 19" in result.stderr
    assert "expected queries.jsonl" in run("tune", collection, tmp_path, code=1).stderr
