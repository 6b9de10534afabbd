"""What a reading of the training pairs found is mended, and the rest stays as it was."""

from cde_rag_training.pairs import Pair
from cde_rag_training.repaired_pairs import NO_TITLE, RFCS, answers, one_per_query, with_rfcs_apart


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
    ]
    good = [
        Pair("What are the symptoms?", "Fever. " * 50 + "The Human Phenotype Ontology provides", "medquad", "m"),
        Pair("Return the sum (as an integer)", "return x", "functions", "f"),
        Pair("Show a file.", "- cat x", "tldr", "t"),
        Pair("This command is an alias of a.", "as it stands in another source", "docs", "d"),
    ]
    assert list(filter(answers, bad + good)) == good


def test_the_first_pair_of_a_query_stays_in_each_source():
    pairs = [Pair("Rest", "a", "x", "x"), Pair("rest", "b", "x", "y"), Pair("Rest", "c", "z", "z")]
    assert [pair.document for pair in one_per_query(pairs)] == ["a", "c"]
