"""Steps from a call of a user's to the model, counted by `tools/house.py`."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_from_add_and_search_to_the_forward_pass() -> None:
    spec = importlib.util.spec_from_file_location("house", ROOT / "tools" / "house.py")
    assert spec is not None
    assert spec.loader is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    add, add_with_siblings, search, hybrid = house.journeys(ROOT)
    assert 4 <= add <= 9  # the embedder, and the port of its model
    assert 4 <= search <= 7
    assert add_with_siblings <= 13
    assert hybrid <= 11
