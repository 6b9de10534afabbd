"""Batches: which pairs, which context documents and which siblings an update sees."""
