"""Each figure of an experiment on contexts, siblings or corpus statistics is the one that the slow, obvious way gives.

Sets of sixty queries: what is right and what is nearly so differ in NDCG@10.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partialmethod

import numpy as np
import pytest
import torch
from made_sets import made_set
from tiny import WORDS, tiny_cde_model

from cde_rag.context.sampling import sample_random
from cde_rag.context.siblings import sibling_positions
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.mixing import unit, whitening
from cde_rag.errors import CorpusError
from cde_rag.evaluation import evaluate
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.evaluation.encoding import without_relevant
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag_training.data.cuts import part
from lab.experiments import context_choice, context_size, training_free
from lab.experiments.laboratory import Laboratory, Space, score
from lab.experiments.movement import movement
from lab.experiments.output_map import output_map
from lab.experiments.sibling_count import sibling_count
from lab.experiments.small_corpora import small_corpora

SIZE = 60  # documents and queries of a set


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """Three sets; documents of the third have no parents."""
    words = {"river": WORDS[:12], "bank": WORDS[8:], "plain": WORDS[4:16]}
    sets = [
        made_set(name, seed=seed, words=some, documents=SIZE, queries=SIZE)
        for seed, (name, some) in enumerate(words.items())
    ]
    sets[2] = replace(sets[2], corpus=replace(sets[2].corpus, parents=None))
    return Laboratory(tiny_cde_model(), sets, tmp_path_factory.mktemp("cache"))


def under(space: Space, data: RetrievalSet, siblings: Sequence[Sequence[int]]) -> float:
    """NDCG@10 where each document is embedded with the texts at these positions."""
    texts = data.corpus.texts
    vectors = space.embedder.embed_passages(texts, [[texts[other] for other in row] for row in siblings]).vectors
    return score(data, space.queries(data.queries), vectors).mean()


def of_the_same(parents: Sequence[str | None]) -> list[list[int]]:
    """For each document all others of its parent."""
    rows = range(len(parents))
    return [[other for other in rows if parents[other] == parents[row] and other != row] for row in rows]


def test_siblings_are_those_of_the_parent_and_wrong_ones_those_of_another(lab: Laboratory):
    river, *_, plain = lab.sets
    rows = {(row.system, row.siblings): row for row in sibling_count(replace(lab, sets=[river, plain]))}
    parents, space = list(river.corpus.parents or ()), lab.space(river.corpus.texts)
    shuffled = [parents[place] for place in np.random.default_rng(lab.seed).permutation(SIZE)]
    others = of_the_same(parents)
    by_hand = {
        ("siblings", 0): space.score(river).mean(),
        ("siblings", 1): under(space, river, sibling_positions(parents, river.corpus.texts, 1, rule=1)),
        **{("siblings", count): under(space, river, others) for count in (2, 4, 8, 16)},
        ("wrong siblings", 16): under(space, river, of_the_same(shuffled)),
        ("bm25", 0): evaluate([river], systems=("bm25",)).sets[0].mean("bm25"),
    }
    assert len(set(by_hand.values())) == 5
    assert {key: rows[key].ndcg for key in by_hand} == pytest.approx(by_hand)
    for row in rows.values():
        assert row.corpus == "river"
        assert row.gain == pytest.approx(row.ndcg - by_hand["siblings", 0])
        assert (row.seconds > 0) == (row.system in ("siblings", "wrong siblings"))


def test_movement_is_that_of_each_vector_and_of_the_nearest_ten(lab: Laboratory, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Laboratory, "space", partialmethod(Laboratory.space, size=8))  # another seed, other documents
    rows = {(row.corpus, row.to): row for row in movement(lab)}
    places = range(SIZE)

    def nearest(vectors: np.ndarray, place: int) -> set[int]:
        others = [other for other in places if other != place]
        return set(sorted(others, key=lambda other: -float(vectors[place] @ vectors[other]))[:10])

    for data, following in zip(lab.sets, [*lab.sets[1:], lab.sets[0]], strict=True):
        texts = data.corpus.texts
        own, another, foreign = lab.space(texts), lab.space(texts, seed=1), lab.space(following.corpus.texts)
        for name, space in (("another seed", another), ("foreign", foreign), ("null", lab.null())):
            row, before, after = rows[data.corpus.name, name], own.documents(texts), space.documents(texts)
            asked, asked_after = own.queries(data.queries), space.queries(data.queries)
            distances = [1 - before[place] @ after[place] for place in places]
            asked_distances = [1 - asked[place] @ asked_after[place] for place in places]
            kept = [len(nearest(before, place) & nearest(after, place)) / 10 for place in places]
            found = (row.documents, row.queries, row.neighbours_kept)
            assert found == pytest.approx((np.mean(distances), np.mean(asked_distances), np.mean(kept)), abs=1e-6)
            assert min(row.documents, row.queries) > 1e-4
            assert row.neighbours_kept < 1
    assert len({row.documents for row in rows.values()}) == 9


def test_a_context_is_a_sample_of_each_size_and_the_first_tokens_of_each_document(
    lab: Laboratory, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(context_size, "TIMED", 1)
    lab = replace(lab, sets=lab.sets[:1])
    (river,), texts = lab.sets, lab.sets[0].corpus.texts
    sizes, tokens = context_size.context_size(lab), context_size.context_tokens(lab)
    assert [row.documents for row in sizes] == [0, 8, 32, SIZE, SIZE, SIZE]
    assert {row.documents for row in tokens} == {SIZE}
    assert [row.tokens for row in sizes] == [lab.model.config.first_stage_max_length] * 6
    samples = [sample_random(texts, size, seed=0).documents for size in (8, 32, 128)]
    none, few, some, whole = (
        space.score(river).mean() for space in (lab.null(), *(lab.space(sample) for sample in samples))
    )
    assert len({none, few, some, whole}) == 4
    assert [row.ndcg for row in sizes] == pytest.approx([none, few, some, whole, whole, whole])
    cut = {row.tokens: [" ".join(text.split()[: row.tokens - 2]) for text in texts] for row in tokens}  # [CLS], [SEP]
    by_hand = {count: lab.space(starts).score(river).mean() for count, starts in cut.items()}
    assert by_hand[8] != by_hand[16] == whole
    assert {row.tokens: row.ndcg for row in tokens} == pytest.approx(by_hand)
    assert min(min(row.fit_ms, row.query_ms) for row in [*sizes, *tokens]) > 0


def test_choices_of_a_corpus_that_is_taken_whole_agree(lab: Laboratory):
    lab = replace(lab, sets=lab.sets[:2])
    rows = {(row.corpus, row.choice): row for row in context_choice.context_choice(lab)}
    river, few = lab.sets[0], rows["river", "random 8"]
    whole = [rows["river", choice] for choice in ("random 512", "random 64", "clusters 64", "means 512", "means 64")]
    assert [row.ndcg for row in whole] == pytest.approx([lab.space(river.corpus.texts).score(river).mean()] * 5)
    assert [row.spread for row in whole] == pytest.approx([0] * 5)
    samples = [sample_random(river.corpus.texts, 8, seed=seed).documents for seed in range(5)]
    found = [lab.space(sample).score(river).mean() for sample in samples]
    assert few.seeds == len(set(found)) == 5
    assert (few.ndcg, few.spread) == (pytest.approx(np.mean(found)), pytest.approx(np.std(found)))
    assert few.gain == pytest.approx(few.ndcg - lab.null().score(river).mean())
    means = [rows[data.corpus.name, "random 8"].ndcg for data in lab.sets]
    assert rows["mean", "random 8"].ndcg == pytest.approx(np.mean(means))


def test_clusters_and_means_of_a_corpus_of_kinds_are_one_of_each(lab: Laboratory, monkeypatch: pytest.MonkeyPatch):
    """Documents of a kind differ in capital letters, which the model does not see; half of the kinds have but one."""
    monkeypatch.setattr(context_choice, "SOME", 6)
    river, *_ = lab.sets
    kinds, texts, kind_of = river.corpus.texts[:6], [], []
    for kind, text in enumerate(kinds):
        words, copies = text.split(), 1 + 4 * (kind % 2)
        texts += [" ".join([*words[:place], words[place].upper(), *words[place + 1 :]]) for place in range(copies)]
        kind_of += [kind] * copies
    ids = tuple(f"d{row}" for row in range(len(texts)))
    grades = [{name: (kind + row) % 7 for name, kind in zip(ids, kind_of, strict=True)} for row in range(SIZE)]
    judged = tuple({name: grade for name, grade in row.items() if grade} for row in grades)
    data = RetrievalSet(Corpus("kinds", ids, tuple(texts)), river.query_ids, river.queries, judged)
    lab = replace(lab, sets=[data])
    rows = {row.choice: row for row in context_choice.context_choice(lab) if row.corpus == "kinds"}
    by_hand = lab.space(kinds).score(data).mean()
    samples = [sample_random(texts, 6, seed=seed).documents for seed in range(5)]
    assert by_hand not in [pytest.approx(lab.space(sample).score(data).mean()) for sample in samples]
    assert [rows[choice].ndcg for choice in ("clusters 6", "means 6")] == pytest.approx([by_hand] * 2)
    assert (rows["clusters 6"].seeds, rows["clusters 6"].spread) == (5, pytest.approx(0))


@pytest.mark.parametrize("experiment", [movement, output_map, training_free.training_free])
def test_one_set_lends_itself_no_foreign_context(lab: Laboratory, experiment: Callable[[Laboratory], object]):
    with pytest.raises(CorpusError, match="Expected two sets or more"):
        experiment(replace(lab, sets=lab.sets[:1]))


def test_small_corpora_are_cut_and_keep_answers_out(lab: Laboratory):
    rows, cuts = small_corpora(lab), [(data, size) for data in lab.sets for size in (25, 50)]
    assert [(row.corpus, row.size) for row in rows] == [(data.corpus.name, size) for data, size in cuts]
    for row, (data, size) in zip(rows, cuts, strict=True):
        cut = part(data, documents=size, queries=size // 5)
        kept_out = np.zeros(size // 5)
        for positions, texts in without_relevant(cut) or []:
            right = {document for place in positions for document in cut.judgments[place]}
            assert not {cut.corpus.texts[cut.corpus.ids.index(document)] for document in right} & set(texts)
            kept_out[positions] = lab.space(texts).score(cut)[positions]
        by_hand = (lab.space(cut.corpus.texts).score(cut).mean(), kept_out.mean(), lab.null().score(cut).mean())
        assert (row.own, row.without_relevant, row.null) == pytest.approx(by_hand)
        assert row.documents == len(cut.corpus.texts) >= size
    assert any(len({row.own, row.without_relevant, row.null}) == 3 for row in rows)


def test_the_output_map_is_of_an_exponent_and_of_the_next_set(lab: Laboratory):
    rows = {(row.corpus, row.map, row.exponent): row for row in output_map(lab)}
    unmapped, mapped = tiny_cde_model(), tiny_cde_model().network.output_map
    unmapped.network.output_map.exponent.fill_(0)
    mapped.exponent.fill_(0.4)
    spaces = [lab.space(data.corpus.texts) for data in lab.sets]
    for place, (data, space) in enumerate(zip(lab.sets, spaces, strict=True)):
        embedder = ContextualEmbedder(unmapped, space.context)
        queries, documents = embedder.embed_queries(data.queries), embedder.embed_documents(data.corpus.texts)
        without, found = score(data, queries, documents).mean(), []
        for context in (spaces[other].context for other in (place, (place + 1) % 3, (place + 2) % 3)):
            matrix = mapped(torch.tensor(context.context_embeddings), torch.tensor(context.counts)).numpy()
            found.append(score(data, unit(queries @ matrix), unit(documents @ matrix)).mean())
        assert len({without, *found}) == 4
        for name, ndcg in zip(("own", "foreign"), found, strict=False):
            row = rows[data.corpus.name, name, 0.4]
            assert (row.ndcg, row.gain) == pytest.approx((ndcg, ndcg - without))
            assert rows[data.corpus.name, name, 0.0].ndcg == pytest.approx(without)
    assert rows["mean", "own", 0.0].gain == rows["mean", "foreign", 0.0].gain == 0


def test_ways_without_training_are_of_this_corpus_or_of_the_others(lab: Laboratory, monkeypatch: pytest.MonkeyPatch):
    model = training_free.PooledMiniLM()
    monkeypatch.setattr(training_free, "PooledMiniLM", lambda: model)
    lab = replace(lab, sets=lab.sets[:2])
    rows = {(row.corpus, row.way): row for row in training_free.training_free(lab)}
    assert len(rows) == 2 * 5

    def rare_in(corpus: Sequence[str]) -> Callable[[Sequence[int]], np.ndarray]:
        held = model.tokens(corpus)

        def weigh(row: Sequence[int]) -> np.ndarray:
            with_it = [sum(token in other for other in held) for token in row]
            return np.array([max(math.log((len(held) + 1) / (n + 0.5)), 0.05) ** 0.5 for n in with_it])

        return weigh

    for data, other in (lab.sets, lab.sets[::-1]):
        weigh = (lambda row: np.ones(len(row)), rare_in(data.corpus.texts), rare_in(other.corpus.texts))
        asked, held = (model(model.tokens(texts), weigh) for texts in (data.queries, data.corpus.texts))
        mean, matrix = held[0].mean(axis=0), whitening(held[0])
        by_hand = {
            "plain": score(data, asked[0], held[0]),
            "centred": score(data, unit(asked[0] - mean), unit(held[0] - mean)),
            "whitened": score(data, unit(asked[0] @ matrix), unit(held[0] @ matrix)),
            "rarity here": score(data, asked[1], held[1]),
            "rarity elsewhere": score(data, asked[2], held[2]),
        }
        assert len({each.mean() for each in by_hand.values()}) == 5
        for way, each in by_hand.items():
            row, gain = rows[data.corpus.name, way], compare([PairedQueries(each - by_hand["plain"], data.blocks)])
            assert (row.ndcg, row.gain) == pytest.approx((each.mean(), gain.mean))
            assert (row.low, row.high) == pytest.approx(gain.queries)
