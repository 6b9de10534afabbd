"""Adaptation of a model to one corpus of documents without labels."""
