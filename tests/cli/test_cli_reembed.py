"""The commands reembed, rollback and release, on a FAISS folder of LangChain."""

import json
from pathlib import Path

import pytest
from applications import COUNT, TEXTS, LangChainApplication, long_nodes, stub
from embeddings_server import running
from qdrant_client import QdrantClient, models
from typer.testing import CliRunner, Result

from cde_rag import Context, ContextualEmbedder
from cde_rag.adoption.index_files import IndexFolder
from cde_rag.cli import app
from cde_rag.errors import StoreError

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def application(tmp_path: Path) -> LangChainApplication:
    made = LangChainApplication(tmp_path / "data")
    made.build(stub("old-1", 16))
    return made


def test_a_move_by_the_command(application: LangChainApplication, model_folder: Path):
    before, target = application.rows(), application.target
    plan = json.loads(run("reembed", target, "--model", model_folder, "--dry-run", "--json").stdout)
    assert (plan["rows"], plan["dim"][0], plan["before"]) == (COUNT, 16, None)
    assert "rows" in run("reembed", target, "--model", model_folder, "--dry-run").stdout
    assert not application.folder.with_name("data.cde-move").exists()
    stopped = run("reembed", target, "--model", model_folder).stdout
    assert "Nothing is switched" in stopped
    assert "CDEEmbeddings.load" in stopped
    assert "--yes" in stopped
    assert application.rows() == before
    assert "Give it again" in run("reembed", target, "--yes", code=1).stderr  # a folder's name does not find it
    done = json.loads(run("reembed", target, "--model", model_folder, "--yes", "--json").stdout)
    assert (done["switched"], done["embedded"]) == (True, 0)
    context = Context.load(done["line"].split('"')[1])
    embedder = ContextualEmbedder(model_folder, context)
    assert application.finds_best(TEXTS[7], embedder)
    run("reembed", target, "--model", model_folder)  # catches up
    (found,) = json.loads(run("search", target, TEXTS[7], "--model", model_folder, "-k", 1, "--json").stdout)["hits"]
    assert found["text"] == TEXTS[7]  # by the Context that the move has kept
    run("rollback", target)
    none = run("search", target, TEXTS[7], "--model", model_folder, code=1)
    assert "next to it, where cde-rag reembed keeps it" in none.stderr
    assert application.rows() == before
    assert "Released" in run("release", target).stdout
    assert "expected a move that was begun" in run("release", target, code=1).stderr
    assert application.rows() == before


def test_texts_that_the_model_does_not_read_stop_a_move_until_it_is_confirmed(tmp_path: Path, model_folder: Path):
    app = long_nodes(tmp_path / "data", stub("old-1", 16))
    named = (app.target, "--model", model_folder)
    for options in ((), ("--dry-run",)):
        stopped = run("reembed", *named, *options, code=1)
        assert "3 of 3 sampled texts are longer than the 32 tokens" in stopped.output
        assert "cde-rag models" in stopped.output
    plan = json.loads(run("reembed", *named, "--dry-run", "--json", code=1).stdout)
    assert plan["advises_against"]
    assert plan["unread"]["share"] > 0.8
    assert not app.folder.with_name("data.cde-move").exists()
    run("reembed", *named, "--dry-run", "--yes")
    done = run("reembed", *named, "--yes")
    assert "3 of which are longer than the model reads" in done.stderr
    assert f"cde-rag rollback '{app.target}#default'" in done.stdout
    assert "CDEEmbedding.load" in done.stdout
    assert "context.safetensors along to where the application runs" in done.stdout


def test_wrong_usage_is_told(application: LangChainApplication):
    assert "--model" in run("reembed", application.target, code=2).stderr
    assert "--model" in run("reembed", application.target, "--base-url", "http://localhost:1/v1", code=2).stderr
    assert "Expected a target" in run("reembed", "papers", "--model", "x", code=1).stderr


def test_the_new_model_may_be_one_of_an_api(application: LangChainApplication, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with running() as server:
        named = ("--model", f"{server.url}#small", "--document-prefix", "passage: ")
        plan = json.loads(run("reembed", application.target, *named, "--dry-run", "--json").stdout)
        assert (plan["dim"], plan["model"]) == ([16, 8], "small")
        assert any(text.startswith("passage: ") for call in server.calls for text in call["input"])
        done = json.loads(run("reembed", application.target, *named, "--yes", "--json").stdout)
        assert (done["switched"], done["embedded"]) == (True, len(set(TEXTS)))
        run("reembed", application.target, *named)  # catches up


def test_prefixes_are_never_left_out_in_silence(application: LangChainApplication, model_folder: Path):
    refused = run("reembed", application.target, "--model", model_folder, "--document-prefix", "passage: ", code=1)
    assert "prefixes of its own" in refused.stderr


def test_judged_questions_are_read_before_anything(
    application: LangChainApplication, model_folder: Path, tmp_path: Path
):
    judged, none = tmp_path / "judged.jsonl", tmp_path / "none.jsonl"
    lines = [{"question": text, "answers": [{"id": f"d{number}"}]} for number, text in enumerate(TEXTS[:5])]
    judged.write_text("\n".join(map(json.dumps, lines)))
    options = ("--model", model_folder, "--dry-run", "--judged")
    plan = json.loads(run("reembed", application.target, *options, judged, "--json").stdout)
    assert (plan["judged"], plan["sample"]) == (5, COUNT)
    assert plan["before"] is None
    assert "5 judged" in run("reembed", application.target, *options, judged).stdout
    assert "none.jsonl" in run("reembed", application.target, *options, none, code=1).stderr


def test_a_vector_is_named_on_the_way_back_too(tmp_path: Path, model_folder: Path):
    client, target = QdrantClient(path=str(tmp_path / "data")), f"qdrant:{tmp_path / 'data'}#papers"
    params = models.VectorParams(size=16, distance=models.Distance.COSINE)
    client.create_collection("papers", vectors_config={"text": params, "title": params})
    made = stub("old-1", 16).embed_passages(TEXTS, None).vectors.tolist()
    points = [
        models.PointStruct(id=n, payload={"text": text}, vector={"text": made[n], "title": made[n]})
        for n, text in enumerate(TEXTS)
    ]
    client.upsert("papers", points)
    client.close()
    chosen = ("--vector", "text")
    done = json.loads(run("reembed", target, *chosen, "--model", model_folder, "--yes", "--json").stdout)
    assert 'collection_name="papers-cde"' in done["line"]
    told = run("reembed", target, *chosen, "--model", model_folder, "--yes").stdout
    for command in ("rollback", "release"):
        assert f"cde-rag {command} '{target}' --vector text\n" in told
        assert "Give --vector NAME" in run(command, target, code=1).stderr
        run(command, target, *chosen)
    client = QdrantClient(path=str(tmp_path / "data"))
    assert [each.name for each in client.get_collections().collections] == ["papers"]
    client.close()


def test_a_switch_that_was_refused_needs_its_confirmation_again(
    application: LangChainApplication, model_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """Days later the same command without --yes brings later writes elsewhere, as from a timer."""

    def refused(*_: object) -> None:
        raise StoreError("the table is held")

    before, named = application.rows(), (application.target, "--model", model_folder)
    with monkeypatch.context() as patch:
        patch.setattr(IndexFolder, "_exchange", refused)
        assert "the table is held" in run("reembed", *named, "--yes", code=1).stderr
    assert "has not ended" in run("reembed", *named).stdout
    assert json.loads(run("reembed", *named, "--json").stdout)["switched"] is False
    assert application.rows() == before
    assert json.loads(run("reembed", *named, "--yes", "--json").stdout)["switched"] is True
    assert application.rows()[0].vector != before[0].vector
