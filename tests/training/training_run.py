"""How tests of training run a command, and read its errors."""

from collections.abc import Callable

from typer.testing import Result

Run = Callable[..., Result]


def one_sentence(result: Result) -> str:
    """The only line of stderr, which is an error."""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line
