"""Search of a collection: dense, BM25 and hybrid retrieval, fusion, reranking, MMR, grouping."""
