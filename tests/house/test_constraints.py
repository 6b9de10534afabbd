"""constraints.txt: each version can be installed on every Python that its marker admits."""

import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

FILE = Path(__file__).resolve().parents[2] / "constraints.txt"
PYTHONS = ("3.10.12", "3.11.2", "3.12.3", "3.13.5")  # of Ubuntu 22.04, Debian 12, Ubuntu 24.04, Debian 13
PINS = [Requirement(line) for line in FILE.read_text().splitlines() if "==" in line and not line.startswith("#")]


def refused(pin: Requirement) -> list[str]:
    """Return the Pythons that a pin's marker admits and its package, if it is installed in that version, does not."""
    try:
        found = metadata(pin.name)
    except PackageNotFoundError:
        return []
    if found["Version"] not in pin.specifier:
        return []
    needed = SpecifierSet(str(found.json.get("requires_python", "")))
    admitted = [
        python
        for python in PYTHONS
        if pin.marker is None or pin.marker.evaluate({"python_full_version": python, "python_version": python[:4]})
    ]
    return [python for python in admitted if python not in needed]


@pytest.mark.parametrize("pin", PINS, ids=str)
def test_a_pin_admits_no_python_that_its_package_refuses(pin: Requirement):
    assert refused(pin) == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="what is installed on Python 3.10 admits it")
def test_a_pin_without_its_marker_is_noticed():
    marked = next(pin for pin in PINS if pin.name == "numpy" and not refused(pin) and pin.marker is not None)
    newest = [Requirement(str(pin).partition(";")[0]) for pin in PINS if pin.name == marked.name]
    assert any("3.10.12" in refused(pin) for pin in newest)
