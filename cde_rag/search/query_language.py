"""Language of a query that found nothing: a model that reads English finds little by others."""

from cde_rag.models.files.model_files import reads_english_only
from cde_rag.readers.languages import is_english_query


def foreign_query(query: str, model: str) -> str:
    """Return a sentence on a query in another language than a model reads; "" if it is none.

    Args:
        query: Query that found nothing.
        model: Name of the model of the searched vectors.
    """
    if is_english_query(query) or not reads_english_only(model):
        return ""
    return (
        f"The query does not look like English, the language that {model} reads: ask in English, or index with a model "
        "of 100 languages, cde-rag index --model cde-multilingual."
    )
