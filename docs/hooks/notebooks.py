"""Notebooks: Jupytext sources in examples/, executed by `make docs`, as pages.

python docs/hooks/notebooks.py NAME…    executes them into build/notebooks; without names those that changed
"""

import os
import re
import sys
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples"
TABLES = {"07_experiments": ROOT / "docs" / "experiments"}  # what a notebook draws
EXECUTED = ROOT / "build" / "notebooks"
LIMIT = 3600  # seconds that one cell may take
CODES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal
FENCES = re.compile(r"`{3,}")


def names() -> list[str]:
    """Of all notebooks, in their order."""
    return sorted(path.stem for path in SOURCES.glob("[0-9]*.py"))


def execute(name: str) -> Any:
    """Run a notebook in examples/, in a fresh kernel; the first error ends it."""
    notebook = jupytext.read(SOURCES / f"{name}.py")
    client = NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": SOURCES}})
    return client.execute()


def is_fresh(name: str) -> bool:
    """Whether a notebook was executed since it, a file beside it, or a table that it draws changed."""
    executed = EXECUTED / f"{name}.ipynb"
    beside = (path for path in SOURCES.iterdir() if path.is_file() and not path.stem[0].isdigit())
    read = [SOURCES / f"{name}.py", *beside, *(TABLES[name].glob("*.csv") if name in TABLES else ())]
    return executed.exists() and executed.stat().st_mtime >= max(path.stat().st_mtime for path in read)


def rendered(name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown with its images; without outputs where it was not executed since it changed."""
    source = SOURCES / f"{name}.py"
    fresh = is_fresh(name)
    notebook: Any = nbformat.read(EXECUTED / f"{name}.ipynb", as_version=4) if fresh else jupytext.read(source)
    parts: list[str] = []
    images: dict[str, bytes] = {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += _outputs(cell, name, images)
    outputs = "the outputs are those of its last run" if fresh else "`make docs` adds its outputs"
    parts.insert(1, f"*`examples/{name}.py`, a notebook as Jupytext writes it; {outputs}.*")
    return "\n\n".join(parts) + "\n", images


def _outputs(cell: Any, name: str, images: dict[str, bytes]) -> list[str]:
    parts: list[str] = []
    for output in cell.outputs:
        data = output.get("data", {})
        if output.output_type == "stream" and output.name == "stdout":
            parts.append(_block(output.text))
        elif "image/png" in data:
            image = f"{name}-{len(images) + 1}.png"
            images[image] = b64decode(data["image/png"])
            parts.append(f"![{_alternative(cell.source)}]({image})")
        elif "text/plain" in data:
            parts.append(_block(data["text/plain"]))
    return parts


def _block(text: str) -> str:
    """Output as it was written; the fence is longer than any in it."""
    fence = "`" * max([3, *(len(run) + 1 for run in FENCES.findall(text))])
    return f"{fence}{{.text .output}}\n{CODES.sub('', text).rstrip()}\n{fence}"


def _alternative(source: str) -> str:
    """What an image shows: the title that the cell gives it."""
    title = re.search(r"title=\"([^\"]+)\"|set_title\(\"([^\"]+)\"", source)
    return next(filter(None, title.groups())) if title else "a plot of the cell above"


def main(chosen: list[str]) -> None:
    """Execute notebooks and keep them with their outputs, unless they were asked to do little."""
    EXECUTED.mkdir(parents=True, exist_ok=True)
    for name in chosen or [name for name in names() if not is_fresh(name)]:
        started = time.monotonic()
        executed = execute(name)
        if "CDE_RAG_SHORT" not in os.environ:
            nbformat.write(executed, EXECUTED / f"{name}.ipynb")
        print(f"{name}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
