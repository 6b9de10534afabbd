"""A contextual model as a SentenceTransformer: its vectors are the embedder's, its folder brings the Context back, and
what would mix two spaces is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    InformationRetrievalEvaluator,
)
from tiny import WORDS, tiny_cde_model, tiny_network, tiny_tokenizer

from cde_rag.context.context import Context
from cde_rag.embedders.as_sentence_transformer import ContextualModule, load, sentence_transformer
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import ContextFormatError, ContextMismatchError, CorpusError, ModelError
from cde_rag.evaluation import Corpus, RetrievalSet, evaluate, read_beir
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

TEXTS = [" ".join(np.random.default_rng(i).choice(WORDS, 3 + i % 7)) for i in range(40)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> CDEModel:
    """The tiny model, read from files."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return CDEModel.from_pretrained(folder, device="cpu", dtype="float32")


@pytest.fixture(scope="module")
def embedder(stored: CDEModel) -> ContextualEmbedder:
    return ContextualEmbedder.from_corpus(TEXTS, model=stored, context_size=20)


@pytest.fixture
def model(embedder: ContextualEmbedder) -> Any:
    return sentence_transformer(embedder)


def test_each_task_is_its_role(model: Any, embedder: ContextualEmbedder) -> None:
    documents, queries = embedder.embed_documents(TEXTS), embedder.embed_queries(TEXTS)
    assert np.abs(documents - queries).max() > 1e-2  # roles act
    assert isinstance(model, SentenceTransformer)
    np.testing.assert_allclose(model.encode_document(TEXTS, batch_size=7), documents, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS, batch_size=7), queries, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS, task="query"), queries, atol=1e-5)
    np.testing.assert_allclose(model.encode_query(TEXTS[0]), queries[0], atol=1e-5)
    np.testing.assert_allclose(model.similarity(queries, documents), queries @ documents.T, atol=1e-5)


def test_what_sentence_transformers_offers(model: Any, embedder: ContextualEmbedder) -> None:
    documents = embedder.embed_documents(TEXTS)
    cut = model.encode_document(TEXTS, truncate_dim=4, normalize_embeddings=True, convert_to_tensor=True)
    assert isinstance(cut, torch.Tensor)
    expected = documents[:, :4] / np.linalg.norm(documents[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(cut.numpy(), expected, atol=1e-5)
    assert (model.get_embedding_dimension(), model.max_seq_length) == (16, 32)
    assert model.encode_document([]).shape == (0,)
    with pytest.raises(AttributeError):
        model.max_seq_length = 8


def test_without_a_task(model: Any, embedder: ContextualEmbedder) -> None:
    with pytest.raises(ModelError, match=r"found None\. Call encode_query or encode_document"):
        model.encode(TEXTS)
    with pytest.raises(ModelError, match="found 'clustering'"):
        model.encode(TEXTS, task="clustering")
    silent = sentence_transformer(embedder, default_task="document")
    np.testing.assert_allclose(silent.encode(TEXTS), embedder.embed_documents(TEXTS), atol=1e-5)
    np.testing.assert_allclose(silent.encode_query(TEXTS), embedder.embed_queries(TEXTS), atol=1e-5)
    with pytest.raises(ValueError, match="found 'passage'"):
        sentence_transformer(embedder, default_task="passage")


def test_bad_input(model: Any) -> None:
    with pytest.raises(ModelError, match=r"no prompt .* found 'query: '"):
        model.encode_query(TEXTS, prompt="query: ")
    with pytest.raises(CorpusError, match=r"sorts texts by length: Text \d is empty or blank"):
        model.encode_document(["a river", " "])
    with pytest.raises(TypeError, match="str"):
        model.encode_document([("a river", "a bank")])


def test_a_folder_brings_model_and_context_back(model: Any, embedder: ContextualEmbedder, tmp_path: Path) -> None:
    sentence_transformer(embedder, default_task="query").save_pretrained(str(tmp_path / "with default"))
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text()
    assert "encode_query(" in card
    for again in (
        load(tmp_path / "saved", device="cpu"),
        SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True, device="cpu"),
    ):
        cosines = (again.encode_document(TEXTS) * model.encode_document(TEXTS)).sum(axis=1)
        assert cosines.min() > 0.999  # it may compute in bfloat16
        assert again[0].embedder.fingerprint == embedder.fingerprint
        assert again[0].default_task is None
    assert load(tmp_path / "with default")[0].default_task == "query"
    again.save_pretrained(str(tmp_path / "once more"))
    assert load(tmp_path / "once more")[0].embedder.fingerprint == embedder.fingerprint
    with pytest.raises(ModelError, match="exists already"):
        model.save_pretrained(str(tmp_path / "saved"))


def test_a_folder_of_other_weights_or_a_damaged_context(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(str(tmp_path / "saved"))
    module = tmp_path / "saved" / "0_ContextualModule"
    other = tiny_cde_model(seed=1)
    checkpoints.write(module / "model", other.network, tiny_tokenizer())
    with pytest.raises(ContextMismatchError, match="made by 'tiny'"):
        load(tmp_path / "saved")
    with (module / "corpus.context.safetensors").open("ab") as file:
        file.write(b"!")
    with pytest.raises(ContextFormatError):
        SentenceTransformer(str(tmp_path / "saved"), trust_remote_code=True)


def test_a_folder_of_something_else_runs_no_code(model: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"modules\.json"):
        load(tmp_path)
    model.save_pretrained(str(tmp_path / "saved"))
    place = tmp_path / "saved" / "modules.json"
    (ours,) = json.loads(place.read_text())
    for modules in ([ours | {"type": "modeling.Evil"}], [ours, ours | {"idx": 1, "type": "modeling.Dense"}], [], {}):
        place.write_text(json.dumps(modules))
        with pytest.raises(ModelError, match=r"modules\.json"):
            load(tmp_path / "saved")


def test_a_folder_that_looks_like_one_of_ours_runs_no_code(model: Any, tmp_path: Path) -> None:
    """What sentence-transformers would read beside the modules can name code, too."""
    folder = tmp_path / "saved"
    model.save_pretrained(str(folder))
    settings = folder / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"model_type": "SparseEncoder"}))
    (folder / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\nclass Config: pass\n")
    np.testing.assert_allclose(load(folder).encode_query(TEXTS), model.encode_query(TEXTS), atol=1e-2)
    assert not (tmp_path / "it ran").exists()

    place = folder / "modules.json"
    dense = {"idx": 1, "name": "1", "path": "1_Dense", "type": "sentence_transformers.models.Dense"}
    place.write_text(json.dumps([*json.loads(place.read_text()), dense]))  # whose activation can be any callable
    with pytest.raises(ModelError, match=r"alone, found .*Dense"):
        load(folder)


def test_a_default_task_that_is_none(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(str(tmp_path / "saved"))
    (tmp_path / "saved/0_ContextualModule/config.json").write_text('{"default_task": "clustering"}')
    with pytest.raises(ModelError, match=r"config\.json: Expected default_task .*'clustering'"):
        load(tmp_path / "saved")


def test_a_model_without_files_cannot_be_saved(tiny_model: CDEModel, tmp_path: Path) -> None:
    model = sentence_transformer(ContextualEmbedder(tiny_model, Context.null(tiny_model)))
    with pytest.raises(ModelError, match="read by its name or from a folder"):
        model.save_pretrained(str(tmp_path / "saved"))


def test_moved_it_leaves_the_embedder_where_it_is(embedder: ContextualEmbedder) -> None:
    module = ContextualModule(embedder)
    module.to("meta")  # stands for any device that is not the embedder's
    with pytest.raises((NotImplementedError, RuntimeError)):  # it does compute there, where nothing can be computed
        module(module.preprocess(TEXTS, task="query"))
    assert embedder.model.device == "cpu"
    assert embedder.embed_queries(TEXTS).shape == (40, 16)


@pytest.mark.long
def test_in_several_processes(model: Any, embedder: ContextualEmbedder) -> None:
    pool = model.start_multi_process_pool(["cpu", "cpu"])
    try:
        found = model.encode_document(TEXTS, pool=pool, chunk_size=11)
    finally:
        model.stop_multi_process_pool(pool)
    np.testing.assert_allclose(found, embedder.embed_documents(TEXTS), atol=1e-5)


@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_evaluators(shared_data: Path, stored: CDEModel) -> None:
    data = read_beir(shared_data / "eval" / "cisi")
    corpus = Corpus("cisi", data.corpus.ids[:400], data.corpus.texts[:400])
    judged = [{key: 1 for key in one if key in corpus.ids} for one in data.judgments]
    kept = [place for place, one in enumerate(judged) if one]
    names = tuple(f"query {data.query_ids[place]}" for place in kept)  # documents have numbers, as queries had
    queries, judgments = tuple(data.queries[place] for place in kept), tuple(judged[place] for place in kept)
    found = evaluate([RetrievalSet(corpus, names, queries, judgments)], model=stored, context_size=64, systems=["own"])
    expected = float(np.mean(found.sets[0].scores["own"]["ndcg@10"]))

    embedder = ContextualEmbedder.from_corpus(corpus.texts, model=stored, context_size=64)
    relevant = {name: set(one) for name, one in zip(names, judgments, strict=True)}
    evaluator = InformationRetrievalEvaluator(
        dict(zip(names, queries, strict=True)), dict(zip(corpus.ids, corpus.texts, strict=True)), relevant
    )
    scores = evaluator(sentence_transformer(embedder))
    assert 0 < expected < 1
    assert scores["cosine_ndcg@10"] == pytest.approx(expected, abs=1e-6)
    similar = EmbeddingSimilarityEvaluator(TEXTS[:10], TEXTS[10:20], [i / 9 for i in range(10)])
    assert similar(sentence_transformer(embedder, default_task="document"))["spearman_cosine"] < 1
