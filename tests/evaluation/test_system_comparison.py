"""Advice by intervals and costs: sure, tied, too few questions; and the plot of the same figures."""

from xml.etree import ElementTree as ET

import numpy as np
import pytest

from cde_rag.evaluation.costs import Cost
from cde_rag.evaluation.interval_plot import interval_plot
from cde_rag.evaluation.intervals import Difference
from cde_rag.evaluation.system_comparison import SystemComparison

COSTS = {
    "bm25": Cost(),
    "minilm": Cost(10.0, 100, 90),
    "own": Cost(11.0, 100, 30),
    "own --model large": Cost(30.0, 200, 50),
}


def comparison(queries: int, costs=COSTS, sets: int = 1, **gains: float) -> SystemComparison:
    """Systems that gain this much on a mean of queries, each with noise; `large` is the larger model."""
    rng = np.random.default_rng(0)
    scores: list[dict[str, np.ndarray]] = [{} for _ in range(sets)]
    for found in scores:
        for name, gain in gains.items():
            noise = rng.normal(0, 0.02, queries)
            found["own --model large" if name == "large" else name] = 0.4 + gain + noise - noise.mean()
    return SystemComparison("NDCG@10", scores, [np.arange(queries)] * sets, costs)


def test_a_sure_gain_is_worth_its_cost() -> None:
    found = comparison(40, minilm=0, bm25=-0.1, own=0.06, large=0.12)
    assert (found.best, found.taken) == ("own --model large", "own --model large")
    assert found.advice.startswith("Take own --model large: +12.")
    assert found.advice.endswith("over minilm, surely.")


def test_a_tie_takes_the_cheaper_and_names_the_price() -> None:
    found = comparison(40, minilm=0, own=0.061, large=0.062)
    assert found.taken == "own"
    more = found.difference("own --model large", "own")
    assert more.queries[0] <= 0 < more.mean
    assert "Take own: +6." in found.advice
    assert "surely; own --model large would add +0." in found.advice
    assert f"at 2.7 times the cost, not surely (about {found.needed(more):,} questions would show it)." in found.advice
    assert found.to_json()["queries_needed"] == found.needed(more)
    assert found.to_json()["queries_needed"] > 40


def test_of_the_same_cost_the_better_is_taken() -> None:
    """Times differ by a tenth on a busy machine: that is no reason for the worse one."""
    tied = {"minilm": Cost(10.0), "own": Cost(11.0), "null": Cost(13.0)}
    assert comparison(40, tied, minilm=0, own=0.001, null=0.002).taken == "own"
    assert comparison(40, {**tied, "own": Cost(12.6)}, minilm=0, own=0.001, null=0.002).taken == "minilm"


def test_nothing_better_than_the_reference() -> None:
    found = comparison(40, minilm=0.002, own=0, bm25=-0.2)
    assert found.advice == "Take minilm: nothing is surely better."


def test_no_loss_is_named_as_a_reason_to_take_a_system() -> None:
    """The reference is the best, and what is as good for less lies a little below it."""
    costs = {"null": Cost(12.0), "vectors": Cost(5.0)}
    found = comparison(40, costs, null=0.003, vectors=0)
    assert (found.best, found.taken) == ("null", "vectors")
    assert found.advice.startswith("Take vectors, about as good as the best and cheaper; null would add +0.3 ")
    assert found.advice.count("null") == 1
    below = comparison(40, {"vectors": Cost(5.0), "bm25": Cost()}, null=0.003, vectors=0, bm25=-0.2)
    assert "against null" in below.advice


def test_what_costs_no_embedding_has_a_price_in_seconds() -> None:
    found = comparison(40, minilm=-0.1, bm25=0, own=0.002)
    assert found.taken == "bm25"
    assert "for 11 s of embedding, not surely (about" in found.advice


def test_a_large_gain_is_taken_before_it_is_sure() -> None:
    """Else few questions, by which nothing is sure, would always take the system without vectors."""
    scores = {"bm25": np.tile([1.0, 0.0], 15), "minilm": np.tile([0.0, 1.0], 15), "own": np.tile([0.3, 0.95], 15)}
    found = SystemComparison("MRR@10", [scores], [np.arange(30)], COSTS)
    assert not found.is_sure(found.difference("own", "bm25"))
    assert found.advice.startswith("Take own: +12.5 ")


def test_the_default_stays_until_another_system_is_surely_better() -> None:
    """Advice against what a user has, by a gain that may be luck, would cost work for nothing."""
    costs = {"index": Cost(11.0), "hybrid": Cost(5.0), "null_hybrid": Cost(11.0), "minilm": Cost(5.0)}
    index = np.repeat([1.0, 0.0], [41, 19])
    lucky = index.copy()
    lucky[36:46] = 1 - index[36:46]  # five questions lost, five won
    lucky[46:48] = 1.0
    scores = {"index": index, "hybrid": lucky, "minilm": np.zeros(60)}
    found = SystemComparison("1,000 tokens", [scores], [np.arange(60)], costs)
    more = found.difference("hybrid", "index")
    assert more.mean > 0.02
    assert not found.is_sure(more)
    assert (found.best, found.taken) == ("hybrid", "index")
    assert found.advice.startswith("Keep index, the default: nothing is surely better; it is +")
    assert " over minilm, surely; hybrid would add +" in found.advice
    assert "at 0.5 times the cost, not surely (about " in found.advice
    sure = comparison(40, costs, index=0, minilm=-0.3, hybrid=0.1, null_hybrid=0.101)
    assert (sure.best, sure.taken) == ("null_hybrid", "hybrid")  # as good, for less
    assert sure.advice.startswith("Take hybrid: +10.")
    assert " over index, surely; null_hybrid would add +0.1 " in sure.advice


def test_few_questions_name_the_number_that_is_needed() -> None:
    found = comparison(15, minilm=0, own=0.06)
    assert found.advice.startswith("15 questions are too few to choose by, 20 are the fewest: so far own leads minilm")
    assert found.advice.endswith("about 20 would show that.")
    assert found.to_json()["take"] is None
    assert not found.is_sure(found.difference("own", "minilm"))


@pytest.mark.parametrize(
    ("mean", "low", "high", "needed"), [(0.1, -0.1, 0.3, 330), (0.2, 0.1, 0.3, 21), (0.0, -1.0, 1.0, None)]
)
def test_needed_questions_show_the_difference_four_times_in_five(mean, low, high, needed) -> None:
    """At half widths h of n questions: n (h / mean)² (2.80 / 1.96)²; drawn, four of five such samples do."""
    found = comparison(40, minilm=0, own=0)
    assert found.needed(Difference(mean, (low, high), None)) == needed
    if needed == 330:
        rng = np.random.default_rng(1)
        spread = (high - low) / 2 / 1.96 * np.sqrt(40)
        samples = rng.normal(mean, spread, (4_000, needed))
        shown = samples.mean(axis=1) - 1.96 * spread / np.sqrt(needed) > 0
        assert 0.77 < shown.mean() < 0.84


def test_sets_are_drawn_again_and_what_cannot_be_taken_is_not_advised() -> None:
    costs = {name: cost for name, cost in COSTS.items() if name != "own"}
    found = comparison(30, costs, sets=3, minilm=0, own=0.2, large=0.1)
    assert found.difference("own", "minilm").sets is not None
    assert found.taken == "own --model large"
    heading, *rows = found.rows()
    assert heading == [
        "",
        "NDCG@10",
        "− minilm",
        "95 % (queries)",
        "95 % (sets, too)",
        "embed s",
        "vectors MB",
        "model MB",
    ]
    assert {len(row) for row in rows} == {len(heading)}


def test_the_plot_has_the_figures_and_escapes_names() -> None:
    scores = [{"minilm": np.linspace(0, 0.5, 30), "own --model <a&b>": np.linspace(0.1, 0.5, 30)}]
    found = SystemComparison("MRR@10", scores, [np.arange(30)], {"minilm": Cost(10.0, 100, 90_000_000)})
    drawn = ET.fromstring(interval_plot(found))
    texts = [each.text for each in drawn.iter() if each.text and each.text.strip()]
    difference = found.difference("own --model <a&b>", "minilm")
    assert any(text.startswith(f"own --model <a&b>: {100 * difference.mean:+.1f} (") for text in texts)
    assert "10 s, 90 MB" in texts
    assert len([each for each in drawn.iter() if each.tag.endswith("circle")]) == 2
