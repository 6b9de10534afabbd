"""Files that did not change are split once, and what a reader yields and notes is the same as without that."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cde_rag.context.identity import PLAIN, ModelIdentity
from cde_rag.readers import RecordReader, passages
from cde_rag.records import Record

IDENTITY = ModelIdentity(
    name="words", weights_sha256="1" * 64, tokenizer_sha256="2" * 64, attention=PLAIN, semantics="words",
    roles="prefix", prefixes={"query": "", "document": ""}, max_length=64, pooling="mean", normalisation="unit", dim=2,
)  # fmt: skip


class Words:
    """Counter of words, which notes the texts that it has seen."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __call__(self, texts: Sequence[str]) -> int:
        self.seen += texts
        return sum(len(text.split()) + 1 for text in texts)

    def of(self, reader: RecordReader, identity: ModelIdentity | None = IDENTITY) -> tuple[list[Record], int]:
        """Read, and return the records, and how many texts were counted for them."""
        before = len(self.seen)
        reader.count_with(self, 64, identity=identity)
        return list(reader), len(self.seen) - before


def written(path: Path, text: str | bytes, seconds: float = 60.0) -> Path:
    """Write a file that last changed so many seconds ago."""
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    changed = time.time() - seconds
    os.utime(path, (changed, changed))
    return path


def pages(folder: Path) -> Path:
    for name in ("geese", "swifts"):
        written(folder / f"{name}.md", f"# {name}\n\n" + f"Some {name} fly north in a warm May. " * 40)
    return folder


def test_a_second_reading_splits_nothing(tmp_path: Path) -> None:
    reader, words = RecordReader(pages(tmp_path / "birds")), Words()
    first, counted = words.of(reader)
    documents = dict(reader.documents)
    assert counted > 20
    assert words.of(reader) == (first, 0)
    assert reader.documents == documents
    assert words.of(RecordReader(tmp_path / "birds"))[0] == first


def test_other_tokens_and_other_rules_split_anew(tmp_path: Path) -> None:
    reader, words = RecordReader(pages(tmp_path / "birds")), Words()
    words.of(reader)
    assert words.of(reader, replace(IDENTITY, tokenizer_sha256="3" * 64))[1]
    assert words.of(reader, None)[1]
    assert words.of(reader, None)[1], "a counter of nobody knows may count otherwise now"
    before, _ = words.of(reader)
    reader.reading = replace(reader.decided, tokens=30)
    after, counted = words.of(reader)
    assert counted
    assert len(after) > len(before)


def test_a_changed_file_is_split_anew(tmp_path: Path) -> None:
    reader, words = RecordReader(pages(tmp_path / "birds")), Words()
    words.of(reader)
    written(tmp_path / "birds" / "swifts.md", "# swifts\n\nOthers sleep.", 30)
    found, counted = words.of(reader)
    assert [record.text for record in found][-1] == "# swifts\n\nOthers sleep."
    assert 0 < counted < 12
    (tmp_path / "birds" / "swifts.md").unlink()
    assert [record.text for record in words.of(reader)[0]] == [record.text for record in found[:-1]]


def test_a_file_that_changed_just_now_is_not_trusted(tmp_path: Path) -> None:
    """Two edits within a tick of the clock leave size and time as they were."""
    folder = tmp_path / "birds"
    path = written(folder / "a.md", "one two", 0)
    reader, words = RecordReader(folder), Words()
    assert [record.text for record in words.of(reader)[0]] == ["one two"]
    times = path.stat()
    path.write_text("two one")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [record.text for record in words.of(reader)[0]] == ["two one"]


def test_a_file_whose_time_was_set_back_is_split_anew(tmp_path: Path) -> None:
    """Archives and builds give all files one time."""
    path = written(tmp_path / "birds" / "a.md", "one two")
    times = path.stat()
    reader, words = RecordReader(tmp_path / "birds"), Words()
    words.of(reader)
    assert words.of(reader)[1] == 0
    path.write_text("two one")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert [record.text for record in words.of(reader)[0]] == ["two one"]


def test_faults_and_guesses_are_said_at_each_reading(tmp_path: Path) -> None:
    folder = pages(tmp_path / "birds")
    written(folder / "bad.md", b"\x00\x01\x02" * 50)
    written(folder / "old.md", "M\u00f6wen".encode("cp1252"))
    reader, words = RecordReader(folder, skip_bad=True, guess_encoding=True), Words()
    first, _ = words.of(reader)
    said = reader.reports, list(reader.guessed), list(reader.bad_files), reader.skipped
    assert said[0]
    assert said[1]
    again, counted = words.of(reader)
    assert (reader.reports, reader.guessed, reader.bad_files, reader.skipped) == said
    assert again == first
    assert 0 < counted < 10, "only the guessed file"


def test_a_large_folder_is_kept_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, words = RecordReader(pages(tmp_path / "birds")), Words()
    first, counted = words.of(reader)
    monkeypatch.setattr(passages, "_MOST_KEPT", sum(len(record.text) + 600 for record in first) - 1)
    reader = RecordReader(tmp_path / "birds")
    assert words.of(reader) == (first, counted)
    again, some = words.of(reader)
    assert again == first
    assert 0 < some < counted
    for _ in range(20):  # what is given up makes room again
        written(tmp_path / "birds" / "swifts.md", "Swifts sleep on the wing. " * 90, 30)
        words.of(reader)
    written(tmp_path / "birds" / "swifts.md", "Swifts sleep.", 30)
    words.of(reader)
    assert words.of(reader)[1] == 0
