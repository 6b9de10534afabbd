"""A user's questions: the forms that are read, what is left out and counted, and pages that are in one part alone."""

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from made_corpus import own_corpus, page_questions, page_records, write_rows
from prepared_stub import stub_vectors

from cde_rag import Collection
from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CorpusError
from cde_rag.evaluation.own_questions import (
    NO_QUOTE,
    REPEATED,
    UNKNOWN_ID,
    UNKNOWN_PAGE,
    UNKNOWN_TEXT,
    OwnCorpus,
    OwnQuestions,
    read_own_questions,
)
from cde_rag.models import CDEModel
from cde_rag.server.judgments import Judgment, retrieval_set
from cde_rag.stores.faiss import FaissStore
from cde_rag_training.adapt.question_material import (
    FEWEST,
    QuestionMaterial,
    apart,
    question_material,
    rehearsal_pairs,
)
from cde_rag_training.data.pairs import Pair


@pytest.fixture(scope="module")
def corpus() -> OwnCorpus:
    return own_corpus()


def read(path: Path, corpus: OwnCorpus) -> OwnQuestions:
    return read_own_questions(path, corpus, name="words")


def found(given: OwnQuestions) -> dict[str, list[str]]:
    """Question to the ids of the passages that answer it."""
    return {one.text: sorted(right) for one, right in zip(given.data.questions, given.data.answers, strict=True)}


def test_lines_with_ids_or_texts(corpus: OwnCorpus, tmp_path: Path) -> None:
    first, second = corpus.records[:2]
    rows = [
        {"query": " when? ", "ids": [first.id, second.id, "gone"]},
        {"query": "what?", "id": first.id},
        {"query": "who?", "document": f"{second.title.upper()}  {second.text}"},
        {"query": "WHO?", "document": second.text},
        {"query": "why?", "id": "gone"},
        {"query": "where?", "document": "nowhere"},
    ]
    given = read(write_rows(tmp_path / "canary.jsonl", rows), corpus)
    ids = ["docs/page-0.md#0", "docs/page-0.md#1"]
    assert found(given) == {"when?": ids, "what?": ids[:1], "who?": ids[1:]}
    assert given.dropped == {REPEATED: 1, UNKNOWN_ID: 1, UNKNOWN_TEXT: 1}


@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_what_was_judged_on_the_page(corpus: OwnCorpus, tiny_model: CDEModel, tmp_path: Path) -> None:
    """The zip that the page saves, and the same as a folder."""
    judged = [
        Judgment(query="what?", right=[corpus.records[5].id], wrong=[corpus.records[6].id]),
        Judgment(query="who?", right=[], wrong=[corpus.records[6].id]),
    ]
    embedder = ContextualEmbedder(tiny_model, Context.null(tiny_model))
    with Collection.create(FaissStore(tmp_path / "docs.faiss"), embedder, parent_key="source") as collection:
        collection.add_records(corpus.records[:8])
        with retrieval_set(collection, judged) as file:
            path = tmp_path / "docs-judged.zip"
            path.write_bytes(Path(file.name).read_bytes())
    assert found(read(path, corpus)) == {"what?": ["docs/page-1.md#1"]}
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "judged")
    assert found(read(tmp_path / "judged", corpus)) == {"what?": ["docs/page-1.md#1"]}


def test_questions_with_page_and_quote(corpus: OwnCorpus, tmp_path: Path) -> None:
    quote = corpus.records[5].text[-30:]
    rows: list[Any] = [
        {"question": "a?", "kind": "plain", "answers": [{"page": "page-1.md", "quote": quote}]},
        {"question": "b?", "answers": [{"page": "docs/page-2.md", "quote": quote}]},
        {"question": "c?", "answers": [{"page": "page-1000.md", "quote": quote}]},
    ]
    given = read(write_rows(tmp_path / "questions.jsonl", rows).parent, corpus)
    assert found(given) == {"a?": ["docs/page-1.md#1"]}
    assert given.data.questions[0].kind == "plain"
    assert given.dropped == {NO_QUOTE: 1, UNKNOWN_PAGE: 1}


@pytest.mark.parametrize(
    "line", ['{"id": "7"}', '{"query": "x"}', '{"query": 1, "id": 2}', '{"query": "x", "ids": []}', "7", "{"]
)
def test_a_bad_line_is_named(corpus: OwnCorpus, line: str, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(line)
    with pytest.raises(CorpusError, match="line 1"):
        read(path, corpus)


def test_an_empty_array_has_no_questions(corpus: OwnCorpus, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text("[]")
    with pytest.raises(CorpusError, match="expected questions with answers, found none"):
        read(path, corpus)


def test_no_zip_and_no_answers_are_told(corpus: OwnCorpus, tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_text("no zip")
    with pytest.raises(CorpusError, match=r"a\.zip: expected the zip of judged queries"):
        read(tmp_path / "a.zip", corpus)
    path = write_rows(tmp_path / "a.jsonl", [{"query": "who?", "id": "gone"}])
    with pytest.raises(CorpusError, match=f"found: 1 × {UNKNOWN_ID}"):
        read(path, corpus)


def questions_of(corpus: OwnCorpus, folder: Path, rows: Sequence[Any]) -> OwnQuestions:
    return read(write_rows(folder / "questions.jsonl", rows), corpus)


@pytest.fixture
def given(corpus: OwnCorpus, tmp_path: Path) -> OwnQuestions:
    return questions_of(corpus, tmp_path, page_questions(corpus.records))


def pages(ids: Sequence[str]) -> set[str]:
    return {each.partition("#")[0] for each in ids}


def held_out_pages(material: QuestionMaterial) -> set[str]:
    return pages([each for part in (material.development, material.test) for row in part.judgments for each in row])


def test_pages_are_divided_and_not_questions(given: OwnQuestions) -> None:
    material = question_material(given, seed=0, passages=1_000)
    answers = [*material.training.answers, *map(frozenset, material.development.judgments)]
    answers += map(frozenset, material.test.judgments)
    parts = [pages(sorted(frozenset().union(*rows))) for rows in (answers[:44], answers[44:56], answers[56:])]
    assert material.counts == {"training": 44, "development": 12, "test": 24}
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    again = question_material(given, seed=0, passages=1_000)
    assert again.test.queries == material.test.queries
    assert question_material(given, seed=1, passages=1_000).test.queries != material.test.queries


def test_nothing_of_a_held_out_page_is_trained_on(given: OwnQuestions, corpus: OwnCorpus) -> None:
    """Not as a passage, a context, a sibling, a negative, a rehearsed pair, nor as a copy on another page."""
    copied = corpus.passages[-1]._replace(page="docs/copy.md", number=0)  # of a page, maybe held out
    for seed in range(4):
        data = given.data
        twice = OwnQuestions(
            type(data)(data.site, (*data.passages, copied), data.questions, data.answers), given.dropped
        )
        material = question_material(twice, seed=seed, passages=1_000)
        held = held_out_pages(material)
        seen = {passage.page for passage in material.training.passages}
        assert held
        assert not held & seen
        assert ("docs/copy.md" in seen) == ("docs/page-39.md" not in held)
        texts = {passage.text for passage in data.passages if passage.page in held}
        rehearsed = rehearsal_pairs(material, corpus, parent_key="source", seed=0)
        assert rehearsed
        assert not any(pair.document in text for pair in rehearsed for text in texts)
        assert held < {each.partition("#")[0] for each in material.test.corpus.ids}  # but it is searched
    assert {True, False} == {
        "docs/page-39.md" in held_out_pages(question_material(given, seed=seed, passages=1_000)) for seed in range(9)
    }


def test_questions_that_share_a_page_stay_together(corpus: OwnCorpus, tmp_path: Path) -> None:
    """Each third page shares a question with the page after it, so that these two are one group."""
    records = page_records()
    rows = page_questions(records)
    for number in range(0, 39, 3):
        answers = [
            {"page": one.metadata["source"], "quote": one.text[-40:]}
            for one in (records[4 * number], records[4 * number + 4])
        ]
        rows.append({"question": f"both of {number}", "answers": answers})
    material = question_material(questions_of(corpus, tmp_path, rows), seed=0, passages=1_000)
    held = held_out_pages(material)
    for number in range(0, 39, 3):
        assert (f"docs/page-{number}.md" in held) == (f"docs/page-{number + 1}.md" in held)


def test_near_duplicates_of_held_out_questions_are_removed(given: OwnQuestions) -> None:
    material = question_material(given, seed=0, passages=1_000)
    right = next(iter(material.test.judgments[0]))
    answer = dict(zip(material.test.corpus.ids, material.test.corpus.texts, strict=True))[right]
    other = material.training.passages[0].text
    pairs = [
        Pair("is it", f"{answer} at", "questions", "questions"),
        Pair(material.test.queries[0].upper(), other, "questions", "questions"),
        Pair("is it not", other, "questions", "questions"),
    ]
    assert [pair.query for pair in apart(pairs, material, surrogate=stub_vectors)] == ["is it not"]


def test_a_large_corpus_is_cut_around_the_answers(given: OwnQuestions) -> None:
    material = question_material(given, seed=0, passages=10)
    assert all(set(row) <= set(material.test.corpus.ids) for row in material.test.judgments)
    assert all(right <= set(material.training.ids) for right in material.training.answers)


def test_too_few_are_told(corpus: OwnCorpus, tmp_path: Path) -> None:
    few = questions_of(corpus, tmp_path, page_questions(corpus.records)[:30])
    with pytest.raises(CorpusError, match=f"at least {FEWEST['training']} for training, .* about more pages"):
        question_material(few, seed=0, passages=1_000)
