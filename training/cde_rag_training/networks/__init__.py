"""The networks that are trained: start, stages, interpolation of weights, rotation of embeddings."""
