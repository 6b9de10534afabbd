"""Questions with quoted answers: reading, passages that answer, training pairs, scores, and the published form."""
