"""The GPU's distillation: its batches hold each text once, embed as single texts do, and its loss falls."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.tokenizer import TextTokenizer
from lab.experiments.gpu_distillation.__main__ import read_state, write_state
from lab.experiments.gpu_distillation.corpus_stage import train_contexts
from lab.experiments.gpu_distillation.interpolation_choice import EXPONENTS, choice_figures, read
from lab.experiments.gpu_distillation.stage_material import DevelopmentSet, StageMaterial, ndcg
from lab.experiments.gpu_distillation.text_pool import pool
from lab.experiments.gpu_distillation.token_rows import (
    embed,
    embed_all,
    first_vectors,
    groups,
    null_context,
    siblings_of,
    tokenized,
)
from lab.experiments.gpu_distillation.vector_stage import Settings, score_error, train_vectors


def drawn_pairs(count=60):
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS, size=random.integers(4, 12))) for _ in range(2 * count)]
    return [
        {
            "query": f"page {WORDS[row % 5]}: {texts[2 * row]}",
            "document": f"{texts[2 * row + 1]}. {texts[2 * row]}. {texts[2 * row + 1]}",
            "source": "made",
            "domain": "one",
            "parent": f"page {WORDS[row % 5]}",
        }
        for row in range(count)
    ]


@pytest.fixture(scope="module")
def material():
    texts = pool(drawn_pairs())
    rows = tokenized(texts.texts, tiny_tokenizer(), 1, "cpu")
    dim = tiny_network().config.dim
    generator = torch.Generator().manual_seed(0)
    teacher = torch.nn.functional.normalize(torch.randn(len(texts.texts), 2 * dim, generator=generator), dim=1)
    axes = torch.eye(2 * dim)[:, :dim].contiguous()
    mean = torch.nn.functional.normalize(teacher @ axes, dim=1).mean(0)
    return StageMaterial(rows, texts.roles, texts.pairs, texts.trained, teacher.half(), axes, mean, [])


def test_a_pool_names_each_pairs_texts_and_heads_documents_behind_what_is_trained():
    pairs = drawn_pairs(6)
    texts = pool(pairs)
    assert (
        len({*zip(texts.texts[: texts.trained], texts.roles[: texts.trained].tolist(), strict=True)}) == texts.trained
    )
    for pair, (asked, short, answer, headed, corpus, _) in zip(pairs, texts.pairs.tolist(), strict=True):
        assert texts.texts[asked] == pair["query"]
        assert texts.roles[asked] == QUERY
        assert texts.texts[short] == pair["query"].partition(": ")[2]
        assert texts.texts[answer] == pair["document"]
        assert texts.roles[answer] == DOCUMENT
        assert texts.texts[headed] == f"{pair['query']}\n{pair['document']}"
        assert headed >= texts.trained
        assert corpus == 0


def test_groups_hold_each_text_once_and_one_role(material):
    chosen = np.random.default_rng(1).permutation(len(material.roles))[:70]
    found = list(groups(chosen, material.roles, material.rows.lengths, 64))
    assert sorted(np.concatenate([places for _, places in found]).tolist()) == list(range(70))
    assert all((material.roles[chosen[places]] == role).all() for role, places in found)


@torch.no_grad()
def test_grouped_texts_are_embedded_as_single_ones(material):
    network = tiny_network()
    null = null_context(network)
    chosen = np.random.default_rng(2).permutation(len(material.roles))[:40]
    together = embed(network, material.rows, chosen, material.roles, null, 32)
    first = first_vectors(network, material.rows, chosen)
    for place, text in enumerate(chosen[:10]):
        ids, mask = material.rows.gather(np.array([text]))
        alone = network(ids, mask, int(material.roles[text]), null)
        torch.testing.assert_close(together[place], alone[0], atol=1e-5, rtol=0)
        torch.testing.assert_close(first[place], network.read(ids, mask)[0], atol=1e-5, rtol=0)


def test_a_cut_text_keeps_its_separator(material):
    longest = int(material.rows.lengths.argmax())
    ids, mask = material.rows.gather(np.array([longest]), 6)
    whole, _ = material.rows.gather(np.array([longest]))
    last = whole[0, material.rows.lengths[longest] - 1]
    assert ids[0].tolist() == [*whole[0, :5].tolist(), int(last)]
    assert mask.all()
    with_library = TextTokenizer(tiny_tokenizer())(["a b " * 30], 6)[0].ids
    assert with_library[-1] == int(last)


def test_the_score_error_ignores_what_moves_all_scores_of_a_text():
    random = torch.Generator().manual_seed(3)
    ours = torch.randn(1, 5, 4, generator=random)
    assert float(score_error(ours, ours)) == 0
    flipped = ours.clone()
    flipped[0, 0] = -flipped[0, 0]
    assert float(score_error(ours, flipped)) > 0.01


def test_ndcg_is_that_of_the_evaluation():
    scores = torch.tensor([[0.1, 0.9, 0.5], [0.3, 0.2, 0.1]])
    gains = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert ndcg(scores, gains) == pytest.approx(100 * (1 / np.log2(4) + 1) / 2)


SMALL = Settings(
    random_texts=24, neighbourhoods=2, neighbours=8, pairs=8, corpora=1, rate=3e-3, later_rate=3e-3, most_siblings=4
)


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves on by a second each time it is read, so that a run of some seconds has as many updates."""
    ticks = itertools.count()
    counted = SimpleNamespace(monotonic=lambda: float(next(ticks)))
    monkeypatch.setattr("lab.experiments.gpu_distillation.vector_stage.time", counted)


@pytest.mark.usefixtures("clock")
def test_stage_1_approaches_the_targets(material):
    curve = train_vectors(tiny_network(), material, SMALL, 40.0, "cpu")
    distances = [point["distance"] for point in curve if "distance" in point]
    assert curve[-1]["steps"] > 20
    assert distances[-1] < distances[0]


@pytest.mark.usefixtures("clock")
def test_stages_2_and_3_leave_the_first_stage_and_train_the_path_of_the_context(material):
    network = tiny_network()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    curve = train_contexts(network, material, SMALL, 6.0, "cpu")
    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert np.isfinite(curve[1]["contrastive"])
    assert any(name.startswith("set_attention.") for name in changed)
    assert not any(name.startswith(("first_stage.", "embeddings.")) for name in changed)


@pytest.fixture
def development(material):
    """Eight documents of two parents, each of which answers one query."""
    texts = [" ".join(np.random.default_rng(row).choice(WORDS, size=6)) for row in range(16)]
    queries, documents = (tokenized(part, tiny_tokenizer(), 1, "cpu") for part in (texts[:8], texts[8:]))
    siblings = [[other for other in range(8) if other != row and other // 4 == row // 4] for row in range(8)]
    return DevelopmentSet("made", queries, documents, torch.eye(8), siblings, None)


@torch.no_grad()
def test_figures_of_a_choice_are_those_of_the_models_own_context(development):
    """With the trained exponent and siblings' weight, the figure is that of `TwoStage.prepare` and `forward`."""
    network = tiny_network()
    reading = read(network, development)
    figures = choice_figures(network, development, reading)
    for exponent in EXPONENTS:
        network.output_map.exponent.fill_(exponent)
        counts = torch.ones(8, dtype=torch.long)
        prepared = network.prepare(reading.vectors, counts)
        given = siblings_of(reading.vectors, development.siblings)
        queries = embed_all(network, development.queries, QUERY, prepared)
        for weight, siblings in ((0.0, None), (1.0, given)):
            documents = embed_all(network, development.documents, DOCUMENT, prepared, siblings)
            (found,) = (
                row["ndcg"]
                for row in figures
                if (row["system"], row.get("siblings"), row.get("exponent")) == ("queries", weight, exponent)
            )
            assert found == pytest.approx(ndcg(queries @ documents.T, development.gains), abs=1e-3)


def test_siblings_are_looked_up_and_padded():
    vectors = torch.randn(4, 3)
    given, there = siblings_of(vectors, [[1, 2], [], [3]])
    assert there.tolist() == [[True, True], [False, False], [True, False]]
    assert torch.equal(given[0], vectors[[1, 2]])
    assert torch.equal(given[1:], torch.stack([torch.zeros(2, 3), torch.stack([vectors[3], torch.zeros(3)])]))
    assert siblings_of(vectors, [[], []]) is None


def test_a_state_is_read_as_it_was_written(tmp_path):
    network = tiny_network()
    write_state(network, tmp_path, "state", most=4096)
    assert len(list(tmp_path.glob("state-*.safetensors"))) > 1
    found = read_state(tmp_path, "state")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(found[name], value.half().float())
