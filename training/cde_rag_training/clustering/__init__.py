"""Clusters of pairs by surrogate embeddings, batches packed from them, and near-duplicates."""
