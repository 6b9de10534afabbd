"""The honest comparison: the scores are those of `evaluate`, and the verdict follows from the interval alone."""

from dataclasses import replace

import numpy as np
import pytest
from tiny import WORDS

from cde_rag.evaluation import Corpus, RetrievalSet, evaluate
from cde_rag.models import CDEModel
from cde_rag_training.adapt.before_after import BeforeAfter, bm25_scores, compared, model_scores


def words(number: int) -> str:
    return " ".join(np.random.default_rng(number).choice(WORDS, size=6))


def data_of(count: int, *, parents: bool) -> RetrievalSet:
    ids = tuple(f"document {number}" for number in range(count))
    texts = tuple(words(number) for number in range(count))
    corpus = Corpus("small", ids, texts, tuple(f"p{number // 4}" for number in range(count)) if parents else None)
    asked = range(0, count, 2)
    return RetrievalSet(
        corpus,
        tuple(f"query {number}" for number in asked),
        tuple(f"{words(number)[:20]} river" for number in asked),
        tuple({ids[number]: 1} for number in asked),
    )


@pytest.mark.parametrize(("parents", "system"), [(False, "own"), (True, "parents")])
def test_scores_are_those_of_evaluate(tiny_model: CDEModel, parents: bool, system: str):
    data = data_of(40, parents=parents)
    found = evaluate([data], model=tiny_model, systems=(system, "bm25")).sets[0].scores
    np.testing.assert_allclose(model_scores(tiny_model, data), found[system]["ndcg@10"])
    np.testing.assert_allclose(bm25_scores(data), found["bm25"]["ndcg@10"])


def comparison(gain: np.ndarray) -> BeforeAfter:
    data = data_of(2 * len(gain), parents=False)
    start = np.full(len(gain), 0.5)
    scores = {"start": start, "adapted": start + gain, "bm25": start - 0.25}
    kinds = ["title" if number % 2 else "keywords" for number in range(len(gain))]
    return compared(data, kinds, scores, start="cde-mini", shares={0.5: 0.6, 1.0: 0.4}, share=0.5)


def test_a_gain_on_every_query_is_better():
    found = comparison(np.full(40, 0.125))
    assert found.better
    assert found.verdict == (
        "The adapted model is better on queries that it has not seen: +12.5 points, 95 % interval +12.5 … +12.5."
    )
    assert found.ndcg == {"start": 0.5, "adapted": 0.625, "bm25": 0.25}
    assert found.queries == {"keywords": 20, "title": 20}
    assert found.to_json()["shares"] == {"0.5": 0.6, "1": 0.4}


def test_the_report_names_the_number_of_queries_and_their_kinds_if_there_are_several():
    found = comparison(np.full(40, 0.125))
    assert str(found).splitlines()[0] == (
        "NDCG@10 × 100 over 80 documents, on 40 queries kept apart from training: keywords 20, title 20"
    )
    one = replace(found, documents=1, queries={"question": 1}, by_kind={"question": found.ndcg})
    assert str(one).splitlines()[0] == "NDCG@10 × 100 over 1 document, on 1 query kept apart from training"


@pytest.mark.parametrize(
    ("gain", "reason"),
    [
        (np.zeros(40), "may be chance (+0.0 points"),
        (np.where(np.arange(40) % 2, 0.5, -0.49), "may be chance (+0.5 points"),
        (np.full(40, -0.1), "it is worse (-10.0 points"),
    ],
    ids=["nothing", "noise", "harm"],
)
def test_otherwise_the_own_model_is_to_be_kept(gain: np.ndarray, reason: str):
    found = comparison(gain)
    assert not found.better
    assert found.verdict.startswith("Keep your model (cde-mini): ")
    assert reason in found.verdict


def test_one_sentence_says_what_a_user_gets():
    gain = np.where(np.arange(40) < 10, -0.5, 0.25)  # ten queries find nothing any more
    found = comparison(gain)
    assert found.found == {"start": 1.0, "adapted": 0.75, "bm25": 1.0}
    assert found.outcome == (
        "Of 100 such queries 75 find a right passage among the first ten hits by vectors with the adapted model, 100 "
        "with cde-mini, 100 by BM25."
    )
    assert str(found).splitlines()[-1] == found.to_json()["outcome"] == found.outcome


def test_the_table_has_every_system_and_kind():
    lines = str(comparison(np.where(np.arange(40) % 2, 0.5, 0.0))).splitlines()
    assert lines[1].split() == ["all", "keywords", "title"]
    assert [line.split()[-3:] for line in lines[2:5]] == [
        ["50.0", "50.0", "50.0"],
        ["75.0", "50.0", "100.0"],
        ["25.0", "25.0", "25.0"],
    ]
