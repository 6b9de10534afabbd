"""Search of a collection: dense, BM25 and hybrid retrieval, reciprocal rank fusion, MMR, grouping."""
