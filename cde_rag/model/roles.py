"""Roles of a text: what searches, and what is to be found."""

from typing import Final

QUERY: Final = 0  # rows of the second stage's `roles`
DOCUMENT: Final = 1
