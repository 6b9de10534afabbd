"""Vectors at rest. A store sees arrays, a fingerprint and opaque bytes, never an embedder."""
