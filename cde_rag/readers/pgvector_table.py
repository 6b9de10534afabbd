"""Deprecated: names of 0.2, which are in `cde_rag.adoption.pgvector_table`."""

from cde_rag.errors import old_names

__getattr__ = old_names(
    __name__,
    {
        "LANGCHAIN": ("cde_rag.adoption.pgvector_table", "LANGCHAIN"),
        "LANGCHAIN_V2": ("cde_rag.adoption.pgvector_table", "LANGCHAIN_V2"),
        "LLAMA_INDEX": ("cde_rag.adoption.pgvector_table", "LLAMA_INDEX"),
        "TableColumns": ("cde_rag.adoption.pgvector_table", "TableColumns"),
        "table_records": ("cde_rag.adoption.pgvector_table", "table_records"),
        "table_vectors": ("cde_rag.adoption.pgvector_table", "table_vectors"),
    },
)
