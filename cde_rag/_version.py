"""The version of cde-rag."""

__version__ = "0.1.0.dev0"
