"""Doors to what users have: sentence-transformers, pandas and datasets. Import the module of the one you use."""
