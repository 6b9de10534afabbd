"""Audits: comparison of stored vectors with those that a model and context make of their texts.

    embedder = PlainEmbedder("sentence-transformers/all-MiniLM-L6-v2")
    with source_of("qdrant:http://localhost:6333#papers") as source:
        print(audit(source, embedder).advice)

A changed model, prefix or context gives no error anywhere: the vectors are as long as before, and searches return wrong
results. An audit embeds a sample of the texts again and compares. It only reads. `cde-rag audit` is the command.
"""

from cde_rag.indexing.audit.sources import source_of
from cde_rag.indexing.audit.stored_vectors import SAMPLE, Audit, Source, StoredVector, audit, audit_collection

__all__ = ["SAMPLE", "Audit", "Source", "StoredVector", "audit", "audit_collection", "source_of"]
