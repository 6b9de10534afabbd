"""The version of cde-rag."""

__version__ = "0.2.0"
