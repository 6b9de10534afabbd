"""Experiments on retrieval sets: their figures are those that the slow, obvious way gives; each writes files."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_sets import DOCUMENTS, QUERIES, write_set
from tiny import WORDS, tiny_cde_model

from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import SmallContextWarning
from cde_rag.evaluation import evaluate
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag_training.data.retrieval_sets import SetConfig, SetsConfig, read_sets
from cde_rag_training.recipe import RecipeError, read_recipe
from lab.experiments import ON_MODELS, ON_SETS, models
from lab.experiments.heatmap import NULL, heatmap
from lab.experiments.laboratory import Laboratory, score
from lab.experiments.output_map import remapped
from lab.experiments.prompt_prefixes import prefixes
from lab.experiments.second_pass import second_pass
from lab.experiments.training_free import PooledMiniLM, rarity


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    write_set(folder / "river", seed=0, words=WORDS[:12])
    write_set(folder / "bank", seed=1, words=WORDS[8:])
    rows = [{"query": f"{word} of", "document": f"the {word} in a {word}", "domain": "words"} for word in WORDS]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "sets.toml").write_text(
        'documents = 30\nqueries = 6\n[[sets]]\npath = "river"\n[[sets]]\npath = "bank"\n'
        '[[sets]]\npath = "pairs.jsonl"\nname = "words"\ndomains = ["words"]\n'
    )
    return folder


@pytest.fixture
def lab(data: Path, tmp_path: Path) -> Laboratory:
    sets = read_sets(read_recipe(data / "sets.toml", SetsConfig), data)
    return Laboratory(tiny_cde_model(), sets, tmp_path / "cache")


def test_sets_are_read_as_they_are_named(lab: Laboratory):
    river, _, words = lab.sets
    assert [one.corpus.name for one in lab.sets] == ["river", "bank", "words"]
    assert len(river.corpus.texts) == DOCUMENTS
    assert river.corpus.parents is not None
    assert len(words.queries) == 6
    for query, judged in zip(words.queries, words.judgments, strict=True):
        (right,) = judged
        assert query.split()[0] in words.corpus.texts[words.corpus.ids.index(right)]


def test_two_sets_of_one_name_and_no_set_are_refused(data: Path):
    one = SetConfig(path="river")
    with pytest.raises(ValueError, match="different names"):
        read_sets(SetsConfig(sets=(one, one)), data)
    with pytest.raises(ValueError, match=r"\[\[sets\]\]"):
        SetsConfig()
    (data / "wrong.toml").write_text('[[sets]]\nfolder = "river"\n')
    with pytest.raises(RecipeError, match="unknown key"):
        read_recipe(data / "wrong.toml", SetsConfig)


def test_the_heatmap_agrees_with_evaluate(lab: Laboratory, data: Path):
    rows = {(row.corpus, row.context): row for row in heatmap(lab)}
    assert len(rows) == 3 * 4
    result = evaluate(list(lab.sets[:2]), model=lab.model, systems=("own", "null", "foreign"))
    for place, (name, other) in enumerate([("river", "bank"), ("bank", "river")]):
        found = result.sets[place]
        assert rows[name, name].ndcg == pytest.approx(found.mean("own"))
        assert rows[name, NULL].ndcg == pytest.approx(found.mean("null"))
        assert rows[name, other].ndcg == pytest.approx(found.mean("foreign"))
        assert rows[name, name].gain == pytest.approx(found.mean("own") - found.mean("null"))


def test_a_space_found_again_in_files_is_the_same(lab: Laboratory):
    (river, *_), texts = lab.sets, lab.sets[0].corpus.texts
    first = lab.space(texts).score(river)
    again = Laboratory(tiny_cde_model(), lab.sets, lab.cache).space(texts)
    assert any(lab.cache.rglob("*.safetensors"))
    np.testing.assert_array_equal(first, again.score(river))
    with pytest.warns(SmallContextWarning):
        embedder = ContextualEmbedder.from_corpus(texts, model=lab.model)
    by_hand = score(river, embedder.embed_queries(river.queries), embedder.embed_documents(texts))
    np.testing.assert_array_equal(first, by_hand)


def test_a_second_pass_over_a_corpus_of_a_hundred_or_less_changes_nothing(lab: Laboratory):
    rows = second_pass(lab)
    assert [(row.corpus, row.queries) for row in rows] == [(name, QUERIES) for name in ("river", "bank", "words")] + [
        ("mean", 3 * QUERIES)
    ]
    assert [row.first for row in rows] == pytest.approx([row.second for row in rows])


def test_a_second_pass_gives_the_best_their_own_context(lab: Laboratory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lab.experiments.second_pass.CANDIDATES", 8)
    (river, *_), (row, *_, mean) = lab.sets, (rows := second_pass(lab))
    under, found = lab.space(river.corpus.texts), []
    for query, judged in zip(river.queries, river.judgments, strict=True):
        scores = under.embedder.embed_documents(river.corpus.texts) @ under.embedder.embed_queries([query])[0]
        best = np.argsort(-scores, kind="stable")[:8]
        texts = [river.corpus.texts[place] for place in best]
        with pytest.warns(SmallContextWarning):
            again = ContextualEmbedder.from_corpus(texts, model=lab.model)
        order = np.argsort(-(again.embed_documents(texts) @ again.embed_queries([query])[0]), kind="stable")
        found.append(ndcg([river.corpus.ids[best[place]] for place in order], judged, 10))
    assert row.second == pytest.approx(np.mean(found))
    assert row.gain == pytest.approx(row.second - row.first)
    assert mean.gain == pytest.approx(np.mean([one.gain for one in rows[:-1]]))


def test_vectors_are_remapped_to_those_of_a_model_with_that_exponent(lab: Laboratory):
    (river, *_), network = lab.sets, lab.model.network
    space = lab.space(river.corpus.texts)
    vectors = space.documents(river.corpus.texts)
    np.testing.assert_allclose(
        remapped(vectors, space, network, 0.5, of=space), vectors, atol=1e-5
    )  # the tiny model's own
    other = tiny_cde_model()
    other.network.output_map.exponent.fill_(0.2)
    by_hand = ContextualEmbedder(other, space.context).embed_documents(river.corpus.texts)
    assert np.abs(by_hand - vectors).max() > 1e-2
    np.testing.assert_allclose(remapped(vectors, space, network, 0.2, of=space), by_hand, atol=1e-5)
    bank = lab.space(lab.sets[1].corpus.texts)
    assert np.abs(remapped(vectors, space, network, 0.2, of=bank) - by_hand).max() > 1e-3


def test_vectors_of_a_rotated_model_are_remapped_to_those_that_it_would_make(lab: Laboratory, tmp_path: Path):
    models = [tiny_cde_model() for _ in range(2)]
    for model, exponent in zip(models, (0.5, 0.2), strict=True):
        model.network.config = model.config = replace(model.config, rotated=True)
        model.network.rotation = torch.linalg.qr(torch.arange(256.0).reshape(16, 16).sin()).Q
        model.network.output_map.exponent.fill_(exponent)
    (river, *_) = lab.sets
    space = Laboratory(models[0], lab.sets, tmp_path).space(river.corpus.texts)
    expected = ContextualEmbedder(models[1], space.context).embed_documents(river.corpus.texts)
    found = remapped(space.documents(river.corpus.texts), space, models[0].network, 0.2, of=space)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_embeddings_are_cut_to_their_first_dimensions(lab: Laboratory):
    rows = {(row.corpus, row.model, row.dims): row for row in prefixes(lab)}
    (river, *_) = lab.sets
    space = lab.space(river.corpus.texts)
    queries, documents = (
        vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
        for vectors in (space.queries(river.queries), space.documents(river.corpus.texts))
    )
    name, whole = lab.model.config.name, space.score(river).mean()
    by_hand = score(river, queries, documents).mean()
    assert rows["river", name, 8].ndcg == pytest.approx(by_hand)
    assert rows["river", name, 8].kept == pytest.approx(by_hand / whole)
    assert (rows["river", name, 16].ndcg, rows["river", name, 16].kept) == (pytest.approx(whole), 1)
    assert {row.dims for row in rows.values() if row.model == "minilm"} == {384, 288, 256, 192, 128, 96, 64, 32}


def test_pooling_by_rarity_weighs_rare_words_more_and_none_is_the_mean():
    model = PooledMiniLM()
    rows = model.tokens(["the river bank", "the money bank", "the the the zebra"])
    weigh = rarity(rows[:2] * 10)
    by_word = dict(zip(rows[2], weigh(rows[2]), strict=True))
    the, zebra = rows[2][1], rows[2][4]
    assert by_word[zebra] > 3 * by_word[the]
    plain, double = model(rows, (lambda row: np.ones(len(row)), lambda row: np.full(len(row), 2.0)))
    np.testing.assert_allclose(plain, double, atol=1e-6)
    alone = model([rows[0]], (lambda row: np.ones(len(row)),))[0]
    np.testing.assert_allclose(plain[0], alone[0], atol=1e-5)


def test_models_beside_each_other_are_what_evaluate_says_of_each(lab: Laboratory):
    sets = list(lab.sets[:2])
    other = tiny_cde_model(seed=1)
    other.network.config = other.config = replace(other.config, name="other")
    labs = [Laboratory(model, sets, lab.cache) for model in (lab.model, other)]
    found = models.models(labs)
    rows = {(row.corpus, row.model, row.given): row for row in found if row.against == "minilm"}
    assert len(rows) == 3 * (2 + 2 * 3)
    assert len(found) == 2 * len(rows)
    for each in labs:
        name, result = each.model.config.name, evaluate(sets, model=each.model)
        for given, system in (("context", "parents"), ("no siblings", "own"), ("null", "null")):
            for place, data in enumerate(sets):
                ndcg = result.sets[place].mean(system)
                assert rows[data.corpus.name, name, given].ndcg == pytest.approx(ndcg, abs=1e-6)
    for place, data in enumerate(sets):
        assert rows[data.corpus.name, "bm25", ""].ndcg == pytest.approx(result.sets[place].mean("bm25"))
    references = {"minilm": ("minilm", ""), "tiny": ("tiny", "context")}
    for row in found:
        assert row.gain == pytest.approx(row.ndcg - rows[(row.corpus, *references[row.against])].ndcg)
        assert row.low <= row.gain <= row.high
    mean = rows["mean", "tiny", "context"]
    assert mean.ndcg == pytest.approx(np.mean([rows[data.corpus.name, "tiny", "context"].ndcg for data in sets]))
    ours, theirs = (models.readings(each)["context"] for each in reversed(labs))
    pairs = zip(ours, theirs, sets, strict=True)
    by_hand = compare([PairedQueries(one - another, data.blocks) for one, another, data in pairs])
    assert by_hand.sets not in (None, by_hand.queries)
    to_tiny = {(row.corpus, row.model, row.given): row for row in found if row.against == "tiny"}
    row = to_tiny["mean", "other", "context"]
    assert (row.low, row.high) == pytest.approx(by_hand.queries)
    assert (row.sets_low, row.sets_high) == pytest.approx(by_hand.sets)
    assert {one.sets_low for one in found if one.corpus != "mean"} == {None}


def test_models_write_their_table_and_their_figure(lab: Laboratory, tmp_path: Path):
    table, figure = ON_MODELS["models"].run([lab], tmp_path)
    with table.open() as file:
        assert len(list(csv.DictReader(file))) == 2 * 5 * 4
    assert figure.read_text().startswith("<?xml")


@pytest.mark.parametrize("name", [name for name in ON_SETS if name != "training-free"])
def test_each_experiment_writes_its_table_and_its_figure(name: str, lab: Laboratory, tmp_path: Path):
    table, figure = ON_SETS[name].run(lab, tmp_path)
    with table.open() as file:
        assert len(list(csv.DictReader(file))) >= 2
    assert figure.read_text().startswith("<?xml")
