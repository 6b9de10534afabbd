"""What stays has no near-duplicate among what stays nor in an evaluation set, and what goes is said with its reason."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cde_rag import CDEError
from cde_rag_training.clustering.near_duplicates import DuplicateConfig, UniqueTexts, matches
from cde_rag_training.data.duplicates import EvaluationTexts, read_evaluation, without_near_duplicates
from cde_rag_training.data.pairs import Pair, without_duplicates

CONFIG = DuplicateConfig()
LONG = "the swift spends ten months of the year in the air and even sleeps there"


def vectors(texts):
    """Unlike each other, but for texts that begin with the same "=name", whose cosine is 1."""
    rows = []
    for text in texts:
        name = text.split()[0] if text.startswith("=") else text.lower()
        rows.append(np.random.default_rng(list(name.encode())).normal(size=64))
    return np.array(rows, dtype=np.float32).reshape(len(texts), 64)


def pair(query, document, source="birds"):
    return Pair(query, document, source, source)


def deduplicated(pairs, against=(), config=CONFIG):
    return without_near_duplicates(pairs, config, surrogate=vectors, against=against)


def reasons(result):
    return [(one.pair.query, one.side, one.where, one.rule) for one in result.removals]


EVALUATION = EvaluationTexts("air", [LONG, "=b of the evaluation"], ["how long do swifts stay in the air", "=q asked"])


def test_documents_and_queries_against_documents_and_queries():
    pairs = [
        pair("document like document", LONG + " mostly"),
        pair("document like query", "=q answered"),
        pair("=b asked", "query like document"),
        pair("How long do  swifts stay in the AIR", "query like query"),
        pair("unlike", "anything there"),
    ]
    result = deduplicated(pairs, [EVALUATION])
    assert result.pairs == pairs[4:]
    assert reasons(result) == [
        ("document like document", "document", "air", "jaccard"),
        ("document like query", "document", "air", "cosine"),
        ("=b asked", "query", "air", "cosine"),
        ("How long do  swifts stay in the AIR", "query", "air", "jaccard"),
    ]
    assert result.removals[0].found == LONG
    assert result.removals[0].score == pytest.approx(11 / 12)  # 15 words make 11 n-grams, one more makes 12
    assert result.removals[1].score == pytest.approx(1, abs=1e-6)


def test_hard_negatives_of_an_evaluation_set_go():
    kept = pair("unlike", "anything there")
    given = replace(kept, hard_negatives=("=q  ASKED", "another text", f" {LONG.upper()}\n"))
    expected = [replace(kept, hard_negatives=("another text",))]
    assert deduplicated([given], [EVALUATION]).pairs == expected
    assert without_duplicates([given], against=[*EVALUATION.documents, *EVALUATION.queries]) == expected
    assert deduplicated([given]).pairs == [given]


def test_a_near_duplicate_goes_and_a_second_question_stays():
    pairs = [
        pair("one", LONG),
        pair("two", LONG.upper()),  # the same document, another question
        pair("ONE ", LONG),  # the same question too
        pair("three", LONG + " mostly", "other"),  # nearly the same document
        pair("four", "=a first"),
        pair("five", "=a second"),
    ]
    result = deduplicated(pairs)
    assert result.pairs == [pairs[0], pairs[1], pairs[4]]
    assert reasons(result) == [
        ("ONE ", "document", "birds", "repeated"),
        ("three", "document", "birds", "jaccard"),
        ("five", "document", "birds", "cosine"),
    ]


def test_a_document_that_answers_anything():
    pairs = [pair(f"question {number}", "All rights reserved.") for number in range(12)]
    result = deduplicated(pairs, config=DuplicateConfig(queries_per_document=3))
    assert result.pairs == pairs[:3]
    assert {one.rule for one in result.removals} == {"boilerplate"}


def test_what_was_taken_out_takes_nothing_with_it():
    pairs = [pair("=q asks", "=a first"), pair("stays", "=a second")]
    assert deduplicated(pairs, [EVALUATION]).pairs == pairs[1:]
    chain = [pair(str(number), " ".join(map(str, range(6 * number, 6 * number + 24)))) for number in range(5)]
    assert deduplicated(chain, config=DuplicateConfig(jaccard=0.5)).pairs == chain[::2]  # two steps apart: 8 of 32


def test_whatever_the_order_nothing_alike_stays_and_all_that_went_is_like_what_stays():
    random = np.random.default_rng(0)
    pairs = [pair(f"q{number}", f"={random.integers(40)} {number}") for number in range(120)]
    kept = set()
    for _ in range(3):
        order = random.permutation(len(pairs))
        result = deduplicated([pairs[place] for place in order])
        names = [one.document.split()[0] for one in result.pairs]
        assert len(set(names)) == len(names)
        assert {one.pair.document.split()[0] for one in result.removals} <= set(names)
        assert all(one.found in {stays.document for stays in result.pairs} for one in result.removals)
        kept.add(len(names))
    assert len(kept) == 1


def test_matches_equal_comparing_all_with_all():
    random = np.random.default_rng(0)
    rows = random.normal(size=(60, 8)).astype(np.float32)
    rows[30:] = rows[:30] + 0.25 * random.normal(size=(30, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    texts = UniqueTexts([f"t{number}" for number in range(60)], lambda asked: rows[[int(t[1:]) for t in asked]], CONFIG)
    found = matches(texts, texts, CONFIG)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, 0)
    assert set(zip(found.one.tolist(), found.other.tolist(), strict=True)) == set(
        zip(*(places.tolist() for places in np.nonzero(cosines >= 0.95)), strict=True)
    )
    assert 0 < len(found.one) < 60


def test_the_report_counts_pairs_of_sets():
    pairs = [pair(f"q{number}", f"=a {number}", "birds" if number % 2 else "bees") for number in range(9)]
    pairs.append(pair("=q again", "x"))
    report = deduplicated(pairs, [EVALUATION]).report(examples=2)
    assert [(one.source, one.where, dict(one.by_rule), len(one.examples)) for one in report] == [
        ("bees", "bees", {("document", "cosine"): 4}, 2),
        ("birds", "bees", {("document", "cosine"): 4}, 2),
        ("birds", "air", {("query", "cosine"): 1}, 1),
    ]


def test_no_pairs():
    assert deduplicated([], [EVALUATION]).pairs == []


def test_evaluation_sets_are_read(tmp_path):
    for name, texts in (("corpus", ["a", " "]), ("queries", ["b"]), ("queries_dev", ["c"])):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"_id": "1", "text": text}) + "\n" for text in texts)
        )
    assert read_evaluation(tmp_path) == EvaluationTexts(tmp_path.name, ["a"], ["b", "c"])
    (tmp_path / "queries_dev.jsonl").write_text('{"_id": "1"}\n')
    with pytest.raises(CDEError, match=r"queries_dev.jsonl, line 1: expected a string in 'text'"):
        read_evaluation(tmp_path)


def test_an_evaluation_set_may_be_a_file_of_pairs(tmp_path):
    path = tmp_path / "held-out.jsonl"
    path.write_text('{"query": "b", "document": "a"}\n{"query": "d", "document": "c"}\n')
    assert read_evaluation(path) == EvaluationTexts("held-out.jsonl", ["a", "c"], ["b", "d"])


@pytest.mark.parametrize("files", [{}, {"corpus.jsonl": ""}, {"notes.jsonl": '{"text": "a"}'}])
def test_an_evaluation_set_without_texts_is_an_error(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CDEError, match=r"expected a folder with corpus.jsonl"):
        read_evaluation(tmp_path if files else tmp_path / "misspelt")


def test_evaluation_texts_without_common_words_are_not_embedded():
    embedded = []

    def noted(texts):
        embedded.extend(texts)
        return vectors(texts)

    filler = [f"filler{number} other{number}" for number in range(300)]  # a word of a twentieth of all counts for none
    sets = [EvaluationTexts("air", ["=b of the marsh", "=c elsewhere", *filler], ["swift wings"])]
    pairs = [pair("wings of a swift", "=b in the marsh"), pair("boats", "anything there")]
    kept = without_near_duplicates(pairs, CONFIG, surrogate=noted, against=sets)
    assert set(embedded) - {text for one in pairs for text in (one.query, one.document)} == {
        "=b of the marsh",
        "swift wings",
    }
    assert reasons(kept) == [("wings of a swift", "document", "air", "cosine")]
    every = without_near_duplicates(pairs, DuplicateConfig(shared_words=0.0), surrogate=noted, against=sets)
    assert set(embedded) >= {"=c elsewhere", *filler}
    assert every.pairs == kept.pairs
