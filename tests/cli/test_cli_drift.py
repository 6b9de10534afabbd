"""drift from the command line, as cron calls it."""

import json
import shutil
from pathlib import Path
from unittest import mock

import pytest
from tiny import WORDS

from cde_rag.indexing.drift import SUBSTITUTE, Drift
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")


@pytest.fixture
def collection(run, records: Path, tmp_path: Path) -> Path:
    run("index", records, tmp_path / "books", "--context-size", 8, "--no-progress")
    return tmp_path / "books"


def grown(run, collection: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"n{i}", "text": f"{WORDS[i]} {WORDS[i - 3]} delta"}) for i in range(20)]
    (tmp_path / "more.jsonl").write_text("\n".join(lines))
    run("index", tmp_path / "more.jsonl", collection, "--no-progress")


def test_no_need(run, collection: Path):
    told = json.loads(run("drift", collection, "--context-size", 8, "--json").stdout)
    assert told.items() >= {"pays": False, "gain": 0.0, "documents": 20, "neighbours_kept": 1.0}.items()
    assert told["present"] == told["candidate"]
    assert told["calibrated_on"] == SUBSTITUTE
    shown = run("drift", collection, "--context-size", 8)
    assert shown.stdout.startswith("Nothing to gain: the sample would be the 8 passages")
    assert "If it is new" in shown.stderr


def test_no_need_with_one_passage(run, tmp_path: Path):
    (tmp_path / "one.jsonl").write_text('{"id": "r0", "text": "alpha"}')
    run("index", tmp_path / "one.jsonl", tmp_path / "one", "--no-progress")
    assert "would be the 1 passage that the context has" in run("drift", tmp_path / "one").stdout


def test_what_it_tells_of_a_collection_that_grew(run, collection: Path, tmp_path: Path):
    grown(run, collection, tmp_path)
    told = json.loads(run("drift", collection, "--context-size", 8, "--worth", 1, "--json").stdout)
    assert told.items() >= {"pays": False, "documents": 40, "probes": 40, "embedded": 8 + 7 * 40}.items()
    assert told["interval"][0] < told["gain"] < told["interval"][1]
    report = json.loads(run("recontextualize", collection, "--context-size", 8, "--json").stdout)
    assert report["fingerprint"] == told["candidate"]


def test_the_exit_code_says_that_it_pays(run, collection: Path, tmp_path: Path):
    grown(run, collection, tmp_path)
    with mock.patch.object(Drift, "pays", lambda self, worth: worth < 0.5):
        assert "yes" in run("drift", collection, "--context-size", 8, code=3).stdout
        assert json.loads(run("drift", collection, "--context-size", 8, "--json", code=3).stdout)["pays"] is True
        run("drift", collection, "--context-size", 8, "--worth", 0.6, code=0)


def test_mistakes(run, collection: Path, tmp_path: Path):
    assert "random and clusters" in run("drift", collection, "--strategy", "best", code=2).stderr
    assert "cde-rag index" in run("drift", tmp_path / "none", code=1).stderr
    shutil.rmtree(tmp_path / "books")
    assert "cde-rag index" in run("drift", collection, code=1).stderr


def test_an_empty_collection(run, collection: Path):
    store = FaissStore(collection)
    store.delete([f"r{i}" for i in range(20)])
    store.close()
    assert "empty collection" in run("drift", collection, code=1).stderr
