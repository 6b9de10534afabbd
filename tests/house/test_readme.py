"""README is true: its example prints what it shows, its commands exist, its figure is that of the tables."""

import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from cde_rag.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_prints_what_is_shown(tmp_path: Path) -> None:
    (example,), (output,) = blocks("python"), blocks("text")
    texts = [f"Recipe {number}: how to parse the date of day {number} of a year." for number in range(600)]
    (tmp_path / "notes.txt").write_text("\n\n".join(texts), encoding="utf-8")
    for _ in range(2):  # the second run opens what the first stored
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert len(done.stdout.splitlines()) == len(output.splitlines()) == 2
        assert re.fullmatch(r"(0\.\d{3}  Recipe \d+: how to parse the date of day \d+ of a year\.\n){2}", done.stdout)
        assert done.stdout.splitlines()[0][7:] == output.splitlines()[0][7:]  # scores differ between CPUs


def test_every_command_exists() -> None:
    named = set(re.findall(r"^\$ cde-rag (\w+)", README, flags=re.MULTILINE))
    assert {"index", "search", "serve"} <= named <= set(get_command(app).commands)


def test_it_has_at_most_700_words_of_prose() -> None:
    prose = re.sub(r"```.*?```|<!--.*?-->|\(http[^)]*\)|\]\([^)]*\)", " ", README, flags=re.DOTALL)
    assert len(re.findall(r"\w[\w'’.-]*", prose)) <= 700


def test_the_figure_has_the_values_of_the_tables() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import quality_figure as figure; "
        "print(*(f'{value:.1f}' for each in (figure.documentation(), figure.mixed_texts()) for value in each.values()))"
    )
    values = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    drawn = re.findall(r"<!-- (\d+\.\d) -->", (ROOT / "docs/drawings/quality.svg").read_text(encoding="utf-8"))
    assert values == drawn
    assert {values[0], values[3], values[4], values[7]} <= set(re.findall(r"\d+\.\d", README))
