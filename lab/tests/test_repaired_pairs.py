"""What a reading of the training pairs found is mended, and the rest stays as it was."""

import gzip
import json

from cde_rag_training.data.pairs import Pair
from lab.experiments import bundled_pairs
from lab.experiments.bundled_pairs import FUNCTIONS, HELD_OUT_SOURCES, SOURCES, held_out_pairs
from lab.experiments.repaired_pairs import (
    NO_TITLE,
    RFCS,
    answers,
    one_per_query,
    repaired_pairs,
    with_rfcs_apart,
)


def rfc(heading, document="text", parent=NO_TITLE):
    return Pair(
        query=f"{parent}: {heading}" if heading else parent,
        document=document,
        source="docs",
        domain=RFCS,
        parent=parent,
    )


def test_an_rfc_begins_where_its_headings_begin_again():
    pairs = [
        rfc("Motivation"),  # the first one's summary is not there
        rfc("Private fields"),
        rfc(""),
        rfc("Motivation"),
        rfc("Attributes of statements"),
        rfc("Inner attributes"),
        rfc("Motivation"),  # nor the third one's
        rfc("Unsafe traits"),
    ]
    found = [(pair.query, pair.parent[-1]) for pair in with_rfcs_apart(pairs)]
    assert found == [
        ("Private fields", "0"),
        ("Attributes of statements", "1"),
        ("Inner attributes", "1"),
        ("Unsafe traits", "2"),
    ]


def test_pairs_with_a_title_and_those_of_other_domains_stay_as_they_are():
    others = [rfc("Motivation", parent="Pinning"), Pair("Summary: x", "y", "docs", "doc_redis", "Summary")]
    assert list(with_rfcs_apart(others)) == others


def test_what_answers_nothing_is_left_out():
    bad = [
        Pair("What are the symptoms?", "The Human Phenotype Ontology provides the following list", "medquad", "m"),
        Pair("How is it treated?", "These resources address the diagnosis: - a - b", "medquad", "m"),
        Pair("hidden_states (`torch.FloatTensor`): input to the layer", "return x", "functions", "f"),
        Pair("This command is an alias of a.", "- See a", "tldr", "t"),
        Pair("This command has been renamed.", "- See b", "tldr", "t"),
    ]
    good = [
        Pair("What are the symptoms?", "Fever. " * 50 + "The Human Phenotype Ontology provides", "medquad", "m"),
        Pair("Return the sum (as an integer)", "return x", "functions", "f"),
        Pair("Show a file.", "- cat x", "tldr", "t"),
        Pair("Say whether This command is an alias.", "- type x", "tldr", "t"),
        Pair("This command is an alias of a.", "as it stands in another source", "docs", "d"),
    ]
    assert list(filter(answers, bad + good)) == good


def test_the_first_pair_of_a_query_stays_in_each_source():
    pairs = [Pair("Rest", "a", "x", "x"), Pair("rest", "b", "x", "y"), Pair("Rest", "c", "z", "z")]
    assert [pair.document for pair in one_per_query(pairs)] == ["a", "c"]


def test_what_is_held_out_is_in_no_training_and_what_was_read_is_mended(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled_pairs, "PACKAGES", ())  # functions have tests of their own
    rows = {source: [("query", "document", "some", None)] for source in (*SOURCES, *HELD_OUT_SOURCES)}
    rows["docs"] += [
        ("Summary: Private fields", "of structs", RFCS, NO_TITLE),
        ("Redis: Keys", "and values", "doc_redis", "Redis"),
        ("Git: Trees", "and blobs", "doc_git", "Git"),
    ]
    rows["tldr"] += [("This command is an alias of a.", "- See a", "tldr", None), ("query", "another", "tldr", None)]
    for source, found in rows.items():
        (tmp_path / "train" / source).mkdir(parents=True)
        with gzip.open(tmp_path / "train" / source / "pairs.jsonl.gz", "wt", encoding="utf-8") as file:
            for query, document, domain, title in found:
                row = {"query": query, "document": document, "domain": domain, "title": title}
                file.write(json.dumps(row) + "\n")
    trained = repaired_pairs(tmp_path)
    assert sorted((pair.source, pair.query) for pair in trained) == sorted(
        [*((source, "query") for source in SOURCES if source != FUNCTIONS), ("docs", "Private fields")]
    )
    held_out = list(held_out_pairs(tmp_path))
    assert {(pair.source, pair.query) for pair in held_out} == {
        *((source, "query") for source in HELD_OUT_SOURCES),
        ("docs", "Redis: Keys"),
    }
