"""Contexts of corpora: sampling, the Context with its fingerprint, siblings, and the file format. Needs no model."""
