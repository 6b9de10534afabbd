"""Notebooks: Jupytext sources in examples/, executed by `make docs`, as pages.

python docs/hooks/notebooks.py NAME…    executes them into examples/outputs; without names those that changed

Executed notebooks are part of the repository, so that a site built after a clone shows outputs. Those of other code
than the present cells are not shown; text cells may change freely.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from base64 import b64decode
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "examples"
TABLES = {"07_experiments": ROOT / "lab" / "tables"}  # what a notebook draws
EXECUTED = SOURCES / "outputs"
LIMIT = 3600  # seconds that one cell may take
CODES = re.compile(r"\x1b\[[0-9;]*m")  # colours of a terminal
FENCES = re.compile(r"`{3,}")
TEMPORARY = re.compile(re.escape(tempfile.gettempdir()) + r"(?:/tmp\w+)?")  # with the folder of a run in it


def names() -> list[str]:
    """Of all notebooks, in their order."""
    return sorted(path.stem for path in SOURCES.glob("[0-9]*.py"))


def execute(name: str) -> Any:
    """Run a notebook in examples/, in a fresh kernel; the first error ends it."""
    notebook = jupytext.read(SOURCES / f"{name}.py")
    client = NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": SOURCES}})
    return client.execute()


def inputs(name: str) -> str:
    """Digest of the code of a notebook, of the files beside it, and of the tables that it draws."""
    beside = sorted(path for path in SOURCES.iterdir() if path.is_file() and not path.stem[0].isdigit())
    read = [path for path in beside if path.suffix != ".md"]
    read += sorted(TABLES[name].glob("*.csv")) if name in TABLES else []
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in read]
    cells = _code(jupytext.read(SOURCES / f"{name}.py"))
    return hashlib.sha256(json.dumps([cells, digests]).encode()).hexdigest()


def _code(notebook: Any) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def _executed(name: str) -> Any:
    """The notebook as it was executed last; None if it never was."""
    path = EXECUTED / f"{name}.ipynb"
    return nbformat.read(path, as_version=4) if path.exists() else None


def is_fresh(name: str) -> bool:
    """Whether a notebook was executed since its code, a file beside it, or a table that it draws changed."""
    executed = _executed(name)
    return executed is not None and executed.metadata.get("inputs") == inputs(name)


def rendered(name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown with its images; without outputs where it was not executed since its code changed."""
    notebook: Any = jupytext.read(SOURCES / f"{name}.py")
    executed = _executed(name)
    fresh = executed is not None and _code(executed) == _code(notebook)
    if fresh:
        kept = iter([cell.outputs for cell in executed.cells if cell.cell_type == "code"])
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = next(kept)
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


def _kept(notebook: Any, name: str) -> Any:
    """A notebook as the repository keeps it: without warnings, progress, times and paths of this machine."""
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = TEMPORARY.sub("TMP", output.text.replace(str(ROOT), "."))
    notebook.metadata = {"inputs": inputs(name)}
    return notebook


def main(chosen: list[str]) -> None:
    """Execute notebooks and keep them with their outputs, unless they were asked to do little."""
    EXECUTED.mkdir(parents=True, exist_ok=True)
    for name in chosen or [name for name in names() if not is_fresh(name)]:
        started = time.monotonic()
        executed = execute(name)
        if "CDE_RAG_SHORT" not in os.environ:
            nbformat.write(_kept(executed, name), EXECUTED / f"{name}.ipynb")
        print(f"{name}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
