"""Plain models, which read each text by itself: of sentence-transformers, and functions of users."""
