"""The corpus of `cde-rag demo`: pages of cde-rag's own documentation, with questions in users' words.

The folder `documentation` has the form of `question_folder`, so that `cde-rag evaluate` reads it, too. The questions
were written from the pages by readers who saw no search.
"""

from pathlib import Path
from typing import Final

from cde_rag.evaluation.question_folder import QuestionCorpus, Site, read_corpus

NAME: Final = "documentation"
FOLDER: Final = Path(__file__).with_name(NAME)


def demo_corpus() -> QuestionCorpus:
    """Return the pages, in Markdown by path, and sixty questions with the pages and quotes that answer them.

    Examples:
        >>> corpus = demo_corpus()
        >>> len(corpus.questions), "guide/search.md" in corpus.pages
        (60, True)
    """
    return read_corpus(FOLDER, Site(NAME))
