"""The demo with the real model finds what the committed questions ask for."""

import pytest

from cde_rag.cli.demo_collections import Demo


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::cde_rag.TruncationWarning")
def test_four_of_five_answers_are_among_the_first_five(tmp_path):
    demo = Demo(tmp_path / "demo")
    try:
        found = demo.check(5)
    finally:
        demo.close()
    assert found["own"] >= 0.8
