"""Mutants of the packages that hold the promises, and the share of them that the tests kill."""
