"""The command `cde-rag`. Nothing heavy is imported before a command runs."""

from cde_rag.cli.app import app

__all__ = ["app"]
