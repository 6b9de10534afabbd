"""Fixtures of this folder."""

from golden import tiny_backbones  # noqa: F401
