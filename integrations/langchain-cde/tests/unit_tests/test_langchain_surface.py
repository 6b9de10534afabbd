"""What langchain-cde offers, and that LangChain's suites are run whole."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import langchain_cde

TESTS = Path(__file__).resolve().parents[1]


def test_public_surface() -> None:
    assert langchain_cde.__all__ == ["CDEEmbeddings", "CDERetriever", "CDEVectorStore"]


def test_importing_needs_langchain_core_only() -> None:
    code = """
import sys
import langchain_cde
others = {"chromadb", "langchain_classic", "langchain_community", "langchain_qdrant", "qdrant_client", "faiss"}
print(sorted(others & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_langchains_suites_are_whole(request: pytest.FixtureRequest) -> None:
    """As many as in langchain-tests 1.1, each class with the one that looks for overridden tests."""
    suites = [pytest.Module.from_parent(request.session, path=path) for path in TESTS.rglob("test_langchain_suite_*")]
    collected = Counter(item.cls.__name__ for suite in suites for item in request.session.genitems(suite))
    assert collected == {
        "TestCDEEmbeddings": 8,
        "TestCDEVectorStore": 25,
        "TestCDERetriever": 5,
    }
