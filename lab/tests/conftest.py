"""Helpers of the product's tests, which the laboratory's tests use too."""

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2] / "tests"
sys.path[:0] = [str(TESTS / name) for name in ("docs", "evaluation", "model", "training")]
