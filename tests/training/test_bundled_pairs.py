import pytest

from cde_rag_training.data.pairs import Pair
from experiments import bundled_pairs
from experiments.bundled_pairs import FUNCTIONS, function_pairs

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
