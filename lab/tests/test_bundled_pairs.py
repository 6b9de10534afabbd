import gzip
import json

import pytest

from cde_rag_training.data.pairs import Pair
from lab.experiments import bundled_pairs
from lab.experiments.bundled_pairs import FILES, FUNCTIONS, function_pairs, pairs_beside_questions

LONG = "    return [text, text, text, text, text, text, text]"
SOURCE = f'''
def join(text):
    """Join all words of a text.

    More of it.
    """
{LONG}

def short(text):
    """Join all words of a text."""
    return text

def says_so(text):
    """Join all words of a text."""
    raise ValueError("Join all words of a text. " + text + " and then some more words")

def brief(text):
    """Join words."""
{LONG}

def silent(text):
{LONG}
'''


class File:
    """As importlib.metadata lists an installed package's files."""

    def __init__(self, folder, name):
        self.path, self.name = folder / name, name
        self.suffix, self.parts = self.path.suffix, (name,)

    def __str__(self):
        return self.name

    def with_suffix(self, suffix):
        return File(self.path.parent, self.path.with_suffix(suffix).name)

    def locate(self):
        return self.path


def test_a_function_is_asked_for_by_its_docstrings_first_paragraph(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Not where it is short, has no such paragraph or says it again; and no tests, broken files or other kinds."""
    for name, text in (("words.py", SOURCE), ("test_words.py", SOURCE), ("broken.py", "def ("), ("notes.txt", SOURCE)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(bundled_pairs, "PACKAGES", ("numpy",))
    files = [File(tmp_path, name) for name in ("words.py", "test_words.py", "broken.py", "notes.txt")]
    monkeypatch.setattr("importlib.metadata.files", lambda _: files)
    text = f"def join(text):\n{LONG}"
    assert list(function_pairs()) == [Pair("Join all words of a text.", text, FUNCTIONS, "numpy", "words")]


def test_pairs_that_join_questions_are_free_and_of_no_development_set(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """No share-alike licence, no source of nih_health, none of the held-out forum domains, and no SubjQA."""
    monkeypatch.setattr(bundled_pairs, "PACKAGES", ())
    domains = {
        "docs": ["doc_peps", "doc_owasp", "doc_bips", "doc_git", "doc_redis"],
        "lfrqa": ["lfrqa_fiqa", "lfrqa_recreation", "lfrqa_science"],
        "medquad": ["med_GARD_QA", "med_NIDDK_QA", "med_SeniorHealth_QA", "med_NHLBI_QA_XML", "med_CDC_QA"],
    }
    for source in (*FILES, "subjqa"):
        (tmp_path / "train" / source).mkdir(parents=True)
        rows = [
            {"query": f"{source} {at}", "document": f"text {at} of {source}", "domain": domain}
            for at, domain in enumerate(domains.get(source, [source]))
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (tmp_path / "train" / source / "pairs.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    found = [pair.domain for pair in pairs_beside_questions(tmp_path)]
    assert found == ["doc_peps", "med_GARD_QA", "factbook", "lfrqa_fiqa", "debian", "tldr", "gsm8k"]
