"""Hard negatives are of the rank window, of the source, below the own document by the margin, and never an answer."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared_stub import stub_pairs, stub_vectors
from training_run import Run

from cde_rag import CDEError
from cde_rag.evaluation.bm25 import BM25
from cde_rag_training.data.mining import MiningConfig, bm25_scores, mine, surrogate_scores
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.reading import PairReader


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(0, 20),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from(["random", "best"]),
    st.integers(0, 3),
)
def test_equals_the_slow_way(first, width, count, margin, draw, seed):
    pairs = stub_pairs(36)
    pairs[3] = Pair(pairs[0].query, pairs[3].document, pairs[0].source, "money")  # a second answer
    pairs[6] = Pair("a copy", pairs[0].document.upper(), pairs[0].source, "money")
    config = MiningConfig(first=first, last=first + width, count=count, margin=margin, draw=draw, seed=seed)
    found = mine(pairs, surrogate_scores(lambda texts: stub_vectors([text.lower() for text in texts])), config)
    for pair, before in zip(found.pairs, pairs, strict=True):
        documents = list({one.document.lower(): one.document for one in pairs if one.source == pair.source}.values())
        answers = {one.document.lower() for one in pairs if (one.query, one.source) == (pair.query, pair.source)}
        scores = stub_vectors([text.lower() for text in documents]) @ stub_vectors([pair.query.lower()])[0]
        order = [place for place in np.argsort(-scores) if documents[place].lower() not in answers]
        own = float(stub_vectors([pair.document.lower()])[0] @ stub_vectors([pair.query.lower()])[0])
        window = [place for place in order[first - 1 : first + width] if scores[place] < own - margin * abs(own)]
        allowed = [documents[place].lower() for place in window]
        taken = [text.lower() for text in pair.hard_negatives]
        assert len(taken) == len(set(taken)) == min(count, len(allowed))
        assert taken == (allowed[:count] if draw == "best" else [text for text in allowed if text in taken])
        assert (pair.query, pair.document) == (before.query, before.document)
    assert sum(found.found.values()) == sum(len(pair.hard_negatives) for pair in found.pairs)
    again = mine(pairs, surrogate_scores(lambda texts: stub_vectors([text.lower() for text in texts])), config)
    assert again == found


def test_bm25_is_that_of_the_evaluation():
    documents = [pair.document for pair in stub_pairs(12)]
    queries = [*(pair.query for pair in stub_pairs(12)), "zzz"]
    bm25 = BM25(documents)
    for query, scores in zip(queries, bm25_scores(queries, documents), strict=True):
        np.testing.assert_allclose(scores, bm25.scores(query), atol=1e-5)
    with pytest.raises(CDEError, match="Expected documents with words"):
        list(bm25_scores(["river"], ["the"]))


def test_a_document_without_a_word_of_the_query_is_no_hard_negative():
    pairs = [Pair("river bank", "the river and its bank", "s", "s"), Pair("tide", "a river", "s", "s")]
    pairs += [Pair(f"question {number}", f"stone {number}", "s", "s") for number in range(20)]
    found = mine(pairs, bm25_scores, MiningConfig(first=1, last=9, count=9))
    assert found.pairs[0].hard_negatives == ("a river",)
    assert found.pairs[1].hard_negatives == ()


def test_hard_negatives_that_are_there_stay():
    pairs = [*stub_pairs(30)]
    pairs[0] = Pair(pairs[0].query, pairs[0].document, "faq", "money", hard_negatives=("mine own", pairs[3].document))
    found = mine(pairs, bm25_scores, MiningConfig(first=1, last=9, count=9, margin=0.0)).pairs[0].hard_negatives
    assert found[:2] == pairs[0].hard_negatives
    assert len(set(found)) == len(found)
    with pytest.raises(CDEError, match="Expected pairs to mine for"):
        mine([], bm25_scores, MiningConfig())
    with pytest.raises(ValueError, match="1 ≤ first ≤ last"):
        MiningConfig(first=5, last=4)


def test_the_command(run: Run, tmp_path: Path):
    source, mined = tmp_path / "pairs.jsonl", tmp_path / "mined.jsonl"
    rows = [{"query": one.query, "document": one.document, "source": one.source} for one in stub_pairs(30)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    window = ("--first", 1, "--last", 8, "--count", 2, "--margin", 0)
    told = json.loads(run("mine", source, "--output", mined, *window, "--json").stdout)
    pairs = list(PairReader(mined))
    assert told["found"] == {
        name: sum(len(pair.hard_negatives) for pair in pairs if pair.source == name) for name in ("faq", "docs")
    }
    assert max(len(pair.hard_negatives) for pair in pairs) == 2
    expected = mine(list(PairReader(source)), bm25_scores, MiningConfig(first=1, last=8, count=2, margin=0.0)).pairs
    assert pairs == expected
    nested = tmp_path / "new" / "mined.jsonl"
    run("mine", source, "--output", nested, *window)
    assert nested.read_bytes() == mined.read_bytes()
    assert "end its name in .jsonl" in run("mine", source, "--output", tmp_path / "m.jsonl.gz", code=2).output
    assert "there are minilm and tfidf" in run("mine", source, "--output", mined, "--by", "x", code=1).stderr
