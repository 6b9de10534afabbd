"""The demo with the real model finds what the committed questions ask for."""

import pytest

from cde_rag.cli.demo_collections import Demo


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_four_of_five_answers_are_among_the_first_five(tmp_path):
    demo = Demo(tmp_path / "demo")
    try:
        ranks, sections = demo.ranks("questions"), demo.ranks("sections")
    finally:
        demo.close()
    assert sum(rank.of["own"] is not None and rank.of["own"] <= 5 for rank in ranks) >= 16
    found = [rank.of["hybrid"] is not None and rank.of["hybrid"] <= 5 for rank in sections]
    assert sum(found) >= 0.6 * len(found) >= 60
