"""PlainVectors, under the name by which users import it."""

from cde_rag.models.files.vector_cache import PlainVectors as PlainVectors
