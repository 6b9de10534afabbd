"""The site's first page prints what it shows."""

import re
from pathlib import Path

import pytest

from pages import ROOT, blocks  # isort: skip


def test_the_example_prints_what_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "docs/index.md")
    (code,), (shown,) = ([block.text for block in found if block.language == name] for name in ("python", "text"))
    exec(compile(code, "docs/index.md", "exec"), {})
    number = r"\d\.\d{3}  \d+"  # scores, and so the order of texts that are nearly equal, differ between CPUs
    assert re.sub(number, "#", capsys.readouterr().out) == re.sub(number, "#", shown)
    assert shown.count("\n") == 3
