"""Cross-encoders, which read a query and a text together and score the pair: for reranking."""
