"""What README says is true: its example runs, its commands exist, its links lead somewhere."""

import csv
import re
import subprocess
import sys
from pathlib import Path

from typer.main import get_command

from cde_rag.cli import app

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    texts = [f"Recipe {number}: how to parse the date of day {number} of a year." for number in range(600)]
    (tmp_path / "notes.txt").write_text("\n\n".join(texts), encoding="utf-8")
    for _ in range(2):  # the second run opens what the first stored
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"(0\.\d{3}  Recipe \d+: .*\n){5}", done.stdout)


def test_every_command_is_in_the_table_and_the_other_way_round() -> None:
    assert set(re.findall(r"^\| `cde-rag (\w+)", README, flags=re.MULTILINE)) == set(get_command(app).commands)


def test_speeds_are_those_that_the_benchmarks_wrote() -> None:
    with (ROOT / "docs/speed.csv").open(encoding="utf-8", newline="") as lines:
        measured = [tuple(row.values()) for row in csv.DictReader(lines)]
    section = README.partition("\n## Speed\n")[2].partition("\n## ")[0]
    shown = [tuple(re.split(r" *\| *", line.strip("| "))) for line in section.splitlines() if line.startswith("| ")]
    assert shown[0] == ("what", "found", "aim", "command")
    assert shown[2:] == measured
