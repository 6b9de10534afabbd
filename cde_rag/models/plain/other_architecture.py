"""Model architectures that cannot be written as an ONNX graph, and the check of their settings."""

from collections.abc import Mapping
from typing import Any


class OtherArchitectureError(Exception):
    """A model that the graph writer cannot express; the message names the setting or part found."""


def check_settings(path: str, found: Mapping[str, Any], *, known: Mapping[str, Any]) -> None:
    """Check that all settings of a file are known, or off.

    Args:
        path: Path of the file, for the message.
        found: Its settings.
        known: The only value of each known setting; None for any.

    Raises:
        OtherArchitectureError: There is another setting, or another value.
    """
    for name, value in found.items():
        if name in known and (known[name] is None or value in (None, known[name])):
            continue
        if name in known or value not in (None, False, "", [], {}):
            raise OtherArchitectureError(f"{name} {value!r:.80} in {path}")
