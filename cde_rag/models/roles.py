"""Roles of a text: query and document."""

from typing import Final

QUERY: Final = 0  # rows of the second stage's `roles`
DOCUMENT: Final = 1
