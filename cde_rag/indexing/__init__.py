"""Indexing: upserts with siblings, backfill of generations, the canary, and the estimate of drift."""
