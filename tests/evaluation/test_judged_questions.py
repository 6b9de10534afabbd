"""Judged questions: one class from each form in which they are read, and bad lines by name."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cde_rag.errors import CorpusError
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion, read_judged_questions
from cde_rag.evaluation.question_folder import page_names, read_questions, unpack
from cde_rag.readers import RecordReader


def written(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_each_form_is_one_class(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {
            "id": "q1",
            "question": " a? ",
            "kind": "plain",
            "answers": [{"page": "x.md", "section": "s", "quote": "b c"}],
        },
        {"question": "b?", "answers": [{"id": 7}, {"id": "x#1", "grade": 2}, {"page": "x.md", "quote": "d"}]},
        {"query": "c?", "ids": ["x#1", 7]},
        {"query": "d?", "_id": "x#1"},
        {"query": "e?", "document": "All of it."},
    ]
    found = read_judged_questions(written(tmp_path / "mine.jsonl", *rows))
    assert found == [
        JudgedQuestion("q1", "a?", "plain", (Answer("x.md", "b c"),)),
        JudgedQuestion("", "b?", "", (Answer("x.md", "d"),), {"7": 1, "x#1": 2}),
        JudgedQuestion("", "c?", "", grades={"x#1": 1, "7": 1}),
        JudgedQuestion("", "d?", "", grades={"x#1": 1}),
        JudgedQuestion("", "e?", "", documents=("All of it.",)),
    ]
    assert [(one.by_quote, one.by_id) for one in found] == [
        (True, False), (False, False), (False, True), (False, True), (False, False)
    ]  # fmt: skip
    (tmp_path / "folder").mkdir()
    packed = tmp_path / "folder" / "questions.jsonl.gz"
    packed.write_bytes(gzip.compress((tmp_path / "mine.jsonl").read_bytes()))
    assert read_judged_questions(tmp_path / "folder") == read_judged_questions(packed) == found


def test_a_retrieval_set_and_its_zip_are_questions(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    written(folder / "queries.jsonl", {"_id": "1", "text": "a?"}, {"_id": "2", "text": "b?"})
    (folder / "qrels/dev.tsv").write_text("query\tid\tgrade\n1\tx\t2\n1\ty\t0\n2\ty\t1\n")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for file in ("queries.jsonl", "qrels/dev.tsv"):
            archive.write(folder / file, file)
    expected = [JudgedQuestion("1", "a?", "", grades={"x": 2}), JudgedQuestion("2", "b?", "", grades={"y": 1})]
    assert read_judged_questions(folder, split="dev") == expected
    assert read_judged_questions(tmp_path / "set.zip", split="dev") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a?", "answers": [{"id": ""}]}', "expected ids that are strings or whole numbers, found ''"),
        ('{"question": "a?", "answers": [{"id": "x", "grade": 0}]}', "a whole number above 0 in 'grade', found 0"),
        ('{"question": "a?", "answers": [{"grade": 1}]}', "expected a string in 'page', found no such field"),
        ('{"question": "a?", "answers": [{"id": "x", "quote": "b"}]}', "expected a string in 'page'"),
        ('{"query": "a?", "ids": [true]}', "whole numbers, found True"),
        ('{"query": "a?", "ids": ["x"], "ids": ["y"]}', "'ids'"),
        ('{"query": "a?"}', "expected a string in 'document'"),
        ('{"text": "a?"}', "expected a list of answers"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(f'{{"query": "a?", "id": 1}}\n{line}\n')
    with pytest.raises(CorpusError, match=f"mine.jsonl, line 2: .*{message}"):
        read_judged_questions(tmp_path / "mine.jsonl")


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    for name, message in (("none.jsonl", "found none"), ("gone.jsonl", "not readable"), (".", "queries.jsonl")):
        with pytest.raises(CorpusError, match=message):
            read_judged_questions(tmp_path / name)


def test_questions_of_a_folder_of_pages_have_quotes(tmp_path: Path) -> None:
    written(tmp_path / "questions.jsonl", {"question": "a?", "answers": [{"id": "x.md#0"}]})
    with pytest.raises(CorpusError, match=r"line 1: expected answers with page and quote"):
        read_questions(tmp_path, "mine", ["x.md"])


def test_pages_that_are_sections_are_unpacked_as_files_that_are_read(tmp_path: Path) -> None:
    pages = {"faq.md#rain": "Rain falls.", "faq.md#snow": "Snow falls.", "other.md": "Neither."}
    answers = [[{"page": page, "quote": text}] for page, text in pages.items()]
    written(tmp_path / "questions.jsonl", *({"question": f"{at}?", "answers": one} for at, one in enumerate(answers)))
    unpack(pages, tmp_path / "pages")
    files = page_names(tmp_path / "pages")
    assert files == {"faq#rain.md", "faq#snow.md", "other.md"}
    assert {each.text for each in RecordReader(tmp_path / "pages")} == set(pages.values())
    asked = [one.answers[0].page for one in read_questions(tmp_path, "mine", files)]
    assert asked == ["faq#rain.md", "faq#snow.md", "other.md"]
    assert [one.answers[0].page for one in read_questions(tmp_path, "mine", pages)] == list(pages)


def test_pages_are_unpacked_below_their_folder_alone(tmp_path: Path) -> None:
    pages = {"a/b.md": "Ä\r\n", "c#d.md": "x"}
    for _ in range(2):
        unpack(pages, tmp_path / "pages")
    assert page_names(tmp_path / "pages") == pages.keys()
    assert (tmp_path / "pages/a/b.md").read_bytes() == "Ä\r\n".encode()
    for page in ("../x.md", "/tmp/x.md", "a/../../x.md", "", "a\0b"):
        with pytest.raises(CorpusError, match="expected paths of pages in their folder"):
            unpack({page: "x"}, tmp_path / "pages")
    with pytest.raises(CorpusError, match=r"'a/b\.md/c\.md': cannot be written"):
        unpack({"a/b.md/c.md": "x"}, tmp_path / "pages")
    assert [path.name for path in tmp_path.iterdir()] == ["pages"]
