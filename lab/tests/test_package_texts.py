"""Texts of packages: items with their comments in four languages, sections of readmes, licences, what is left out."""

import io
import json
import tarfile
import zipfile

import pytest

from lab.experiments.commented_code import commented
from lab.experiments.package_texts import (
    PER_PACKAGE,
    Package,
    _debian_package,
    opened,
    package_texts,
    permissive,
    sections,
    texts,
)

PYTHON = '''
class Cache:
    """Keeps answers for the questions that were asked before."""

    def get(self, key):
        """Return the answer that is stored for a key.

        The oldest answers are dropped first, and a key that was never stored gives None, as does one that has expired.
        """
        # look it up
        return self.answers.get(key, None) if key in self.answers and not self.expired(key) else None
'''
RUST = """
/// Returns the number of leading zeros of a word.
///
/// The word is not changed.
#[inline]
pub const fn leading(word: u32) -> u32 {
    if word == 0 { 32 } else { word.leading_zeros() }
}
fn bare() {}
"""
GO = """
// Close releases the connection and all of its buffers.
func (c *Conn) Close() error {
\treturn c.inner.Close()
}

// A comment of nothing.

var x = 1
"""
JAVASCRIPT = """
/**
 * Splits a list into parts of equal length.
 * @param {Array} list The list.
 */
export function chunk(list, size) {
  return [list.slice(0, size)];
}
"""


def only(text, language):
    (item,) = commented(text, language)
    return item


def wheel(folder, name="made", licence="MIT", files=()):
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\nLicense: {licence}\n\n# Made\n"
        )
        for file, text in files:
            archive.writestr(file, text)
    return path


def test_a_python_item_is_its_docstring_and_its_source_without_it():
    function, cache = sorted(commented(PYTHON, "python"), key=lambda item: item.name != "Cache.get")
    assert function.comment.startswith("Return the answer")
    assert "never stored" in function.comment
    assert function.code.startswith("def get(self, key):\n    # look it up\n    return")
    assert cache.name == "Cache"
    assert not cache.function
    assert not list(commented("def broken(:", "python"))


@pytest.mark.parametrize(
    ("text", "language", "name", "comment", "first", "last"),
    [
        (RUST, "rust", "leading", "Returns the number of leading zeros of a word.", "pub const fn", "}"),
        (GO, "go", "Close", "Close releases the connection and all of its buffers.", "func (c *Conn)", "}"),
        (JAVASCRIPT, "javascript", "chunk", "Splits a list into parts of equal length.", "export function", "}"),
    ],
)
def test_an_item_is_its_comment_and_its_code_until_its_brackets_close(text, language, name, comment, first, last):
    item = only(text, language)
    assert item.name == name
    assert item.comment.splitlines()[0] == comment
    assert item.code.startswith(first)
    assert item.code.endswith(last)
    assert "bare" not in item.code
    assert "///" not in item.comment


def test_a_readme_is_split_at_its_headings_outside_code_without_its_licence():
    readme = "Lead.\n# Use\nA [link](there).\n```sh\n# no heading\n```\n## License\nMIT\n\nRun it\n------\nText.\n"
    assert list(sections("made", readme)) == [
        ("made: introduction", "Lead."),
        ("made: Use", "A link.\n```sh\n# no heading\n```"),
        ("made: Run it", "Text."),
    ]


@pytest.mark.parametrize("licence", ["MIT", "BSD 3-Clause", "MIT OR Apache-2.0", "ISC", "Go", "Apache License 2.0"])
def test_permissive_licences_are_taken(licence):
    assert permissive(licence)


@pytest.mark.parametrize(
    "licence", ["", "GPL-3.0", "MIT OR LGPL-2.1", "MPL 2.0", "Proprietary", "CC-BY-SA-4.0", "LICENSE"]
)
def test_other_and_unknown_licences_are_not(licence):
    assert not permissive(licence)


def test_a_wheel_gives_code_and_comments_but_no_tests_and_no_generated_files(tmp_path):
    files = [("made/cache.py", PYTHON), ("made/tests/cache.py", PYTHON), ("made/other.py", f"# DO NOT EDIT\n{PYTHON}")]
    pairs = package_texts(opened(wheel(tmp_path, files=files)))
    assert {(pair.source, pair.query, pair.parent) for pair in pairs} == {
        ("python_code", "Return the answer that is stored for a key.", "made.cache"),
        ("python_code", "Keeps answers for the questions that were asked before.", "made.cache"),
        ("python_comments", "made.cache.Cache.get", "made.cache"),
    }


def test_packages_under_copyleft_or_for_fuzzing_are_skipped_and_documents_come_once(tmp_path, capsys):
    files = [("made/cache.py", PYTHON)]
    paths = [wheel(tmp_path, name, licence, files) for name, licence in (
        ("made", "MIT"), ("again", "BSD"), ("free", "GPL"), ("fuzzer", "MIT")
    )]  # fmt: skip
    packages = []
    assert {pair.domain for pair in texts(paths, packages)} == {"made"}
    assert packages == ["made==1.0 MIT"]
    assert capsys.readouterr().out.splitlines() == ["skipped free: GPL", "skipped fuzzer: MIT"]


def test_an_npm_package_is_named_by_its_manifest(tmp_path):
    path = tmp_path / "any.tgz"
    about = {"name": "@made/lists", "version": "2.0", "license": "MIT"}
    with tarfile.open(path, "w:gz") as archive:
        for name, text in (("package/package.json", json.dumps(about)), ("package/lists.js", JAVASCRIPT)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    package = opened(path)
    assert (package.name, package.version, package.licence) == ("@made/lists", "2.0", "MIT")


def test_long_comments_come_in_parts_and_a_package_has_a_limit():
    paragraph = "This is a sentence about the function and what it is for, number {}. " * 10
    comment = "\n\n    ".join(["What it does."] + [paragraph.format(*[number] * 10) for number in range(4)])
    source = "\n".join(
        f'def name{number}(x):\n    """{comment} Of {number}."""\n    return x + {number}\n'
        for number in range(PER_PACKAGE)
    )
    pairs = package_texts(Package("made", "1", "MIT", {"made/long.py": source.encode()}))
    assert len(pairs) == PER_PACKAGE
    assert max(len(pair.document) for pair in pairs) <= 1500


def test_a_file_that_is_no_package_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a \.whl"):
        opened(tmp_path / "notes.txt")


def test_a_crate_is_named_by_its_package_not_by_its_benchmark(tmp_path):
    manifest = b'[package]\nname = "made"\nversion = "2.1.0"\nlicense = "MIT/Apache-2.0"\n[[bench]]\nname = "speed"\n'
    package = _debian_package(tmp_path / "librust-made-dev_2.1.0-1_amd64.deb", {"./made/Cargo.toml": manifest})
    assert (package.name, package.version, package.licence) == ("made", "2.1.0", "MIT OR Apache-2.0")
