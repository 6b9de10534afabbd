"""Tutorials run with contextual embeddings and, but for the marked lines, with the frameworks' own fake embeddings."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT, blocks  # isort: skip

PAGE = ROOT / "docs/guide/tutorials.md"
CODE = "\n".join(block.text for block in blocks(PAGE))
MARKED = re.compile(r"^(\w+) = (CDEEmbeddings?)\b.*  # changed$", re.MULTILINE)
FAKES = {
    "CDEEmbedding": "__import__('llama_index.core').core.MockEmbedding(embed_dim=8)",
    "CDEEmbeddings": "__import__('langchain_core.embeddings').embeddings.DeterministicFakeEmbedding(size=8)",
}
FOUND = """
assert answer.source_nodes[0].node.ref_doc_id == "recontextualize.md"
assert ensemble.invoke("how do I roll back?")[0].metadata["source"] == "recontextualize.md"
"""


def run(code: str, folder: Path) -> None:
    """Run code in a reader's folder, in a process of its own: LlamaIndex's chat memory leaves a database open."""
    (folder / "docs").mkdir()
    for page in ("recontextualize.md", "tenants.md", "search.md", "contexts.md"):
        shutil.copy(ROOT / "docs/guide" / page, folder / "docs")
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_with_contextual_embeddings(tmp_path: Path) -> None:
    run(CODE + FOUND, tmp_path)


@pytest.mark.slow
def test_with_the_frameworks_own_embeddings(tmp_path: Path) -> None:
    run(MARKED.sub(lambda found: f"{found[1]} = {FAKES[found[2]]}", CODE), tmp_path)


def test_nothing_but_the_marked_lines_is_ours() -> None:
    assert len(MARKED.findall(CODE)) == 7
    rest = [line for line in MARKED.sub("", CODE).splitlines() if "cde" in line.lower()]
    assert rest == ["from llama_index.embeddings.cde import CDEEmbedding", "from langchain_cde import CDEEmbeddings"]
