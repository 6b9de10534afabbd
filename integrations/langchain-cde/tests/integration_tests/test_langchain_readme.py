"""What README shows runs, one block after the other."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
EXPECTED_WARNINGS = """
import warnings
from langchain_cde.keepers import UnstampedStoreWarning
warnings.simplefilter("ignore", UnstampedStoreWarning)
warnings.filterwarnings("ignore", "`langchain-community` is being sunset")
"""  # of InMemoryVectorStore, which the page says; and of the package that FAISS is in


@pytest.mark.slow
def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 8
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join([EXPECTED_WARNINGS, *blocks])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"(game 7 Paragraph \d: rule \d+ of game 7\.\n){5}(game 7\n){2}", done.stdout)
    later = subprocess.run(
        [sys.executable, "-W", "error", "-c", blocks[1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert later.returncode == 0, later.stderr
