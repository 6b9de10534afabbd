"""Size of what a service that searches installs, counted from the files of the packages in this environment."""

import re
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import cde_rag

FOLDER = Path(cde_rag.__file__).parent
ROOT = Path(__file__).resolve().parents[2]


def needed(name: str, extras: Iterable[str]) -> dict[str, Distribution]:
    """Return a distribution with all that it requires, by name."""
    found: dict[str, Distribution] = {}
    asked = [(name, frozenset(extras))]
    seen = set(asked)
    while asked:
        name, extras = asked.pop()
        found[name] = distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in (*extras, "")):
                one = canonicalize_name(requirement.name), frozenset(requirement.extras)
                if one not in seen:
                    seen.add(one)
                    asked.append(one)
    return found


def size(found: Distribution) -> int:
    """Return the bytes of a distribution's files that exist."""
    paths = [path.locate() for path in found.files or ()]
    return sum(path.stat().st_size for path in paths if path.exists())  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("runtime", "largest"), [("onnx", 400e6), ("openvino", 500e6)])
def test_a_service_that_searches_is_small_and_needs_no_torch(runtime: str, largest: float) -> None:
    found = needed("cde-rag", [runtime, "faiss"])
    assert {"numpy", "faiss-cpu", "tokenizers"} < set(found)
    assert "torch" not in found
    own = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert 150e6 < own + sum(size(one) for name, one in found.items() if name != "cde-rag") < largest


@pytest.mark.parametrize(
    "project", sorted(ROOT.glob("integrations/*/pyproject.toml")), ids=lambda path: path.parent.name
)
def test_an_adapter_brings_a_runtime_and_no_torch(project: Path) -> None:
    """PyTorch's GPU libraries take 3 GB; the pages of the adapters install nothing else."""
    (line,) = re.findall(r'^dependencies = \["(cde-rag\b.*?)"', project.read_text(encoding="utf-8"), re.MULTILINE)
    found = needed("cde-rag", Requirement(line).extras)
    assert {"openvino", "onnxruntime"} & set(found)
    assert "torch" not in found
