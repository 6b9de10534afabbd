"""Pages of the documentation, and the code on them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md")
FENCE = re.compile(r"(?:<!-- (not run: .+?) -->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        language: Behind the fence.
        text: Between the fences.
        not_run: Why it is not run; None where it is.
    """

    language: str
    text: str
    not_run: str | None


def blocks(path: Path) -> list[Block]:
    """Of a page, in order."""
    found = FENCE.findall(path.read_text(encoding="utf-8"))
    return [Block(language, text, reason or None) for reason, language, text in found]


def pages() -> list[Path]:
    """All that people read."""
    inside = (ROOT / "docs").rglob("*.md")
    return sorted([*inside, *(ROOT / "integrations").glob("*/README.md"), *(ROOT / name for name in BESIDE)])


def commands(text: str) -> list[str]:
    """The lines of a console block that begin with a prompt, without comments."""
    lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    return [re.sub(r"\s+# .*", "", line).strip() for line in lines]
