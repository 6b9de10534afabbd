"""The command `cde-rag-train`. Nothing heavy is imported before a command runs."""

from cde_rag_training.cli.app import app

__all__ = ["app"]
