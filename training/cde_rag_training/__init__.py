"""Training of contextual embedding models: clustered contrastive learning with the context disjoint from the batch."""
