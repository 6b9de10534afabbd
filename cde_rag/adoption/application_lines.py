"""Lines of applications that name their model, as they have to be after a move."""

import json
from pathlib import Path
from typing import Final, NamedTuple

from cde_rag.embedders.protocol import Embedder
from cde_rag.models.files.names import ModelName
from cde_rag.models.plain.function_model import FUNCTION


def common_name(name: str) -> str:
    """Return the name by which other programs load a model: without the commit that ours adds to a hub id."""
    return name if "?" in name else ModelName.parse(name).base


def plain_name(embedder: Embedder) -> str | None:
    """Return the name of a SentenceTransformer without prefixes, which stores' functions load; None for another."""
    identity = embedder.context.identity
    is_more = embedder.context.size or any(identity.prefixes.values()) or identity.windows
    found = common_name(identity.name)
    return found if identity.is_plain and not is_more and identity.pooling != FUNCTION else None


class Adapter(NamedTuple):
    """Lines of an application that make its embedder.

    Attributes:
        native: Line for a SentenceTransformer without prefixes, with `{name}`, a string of Python.
        ours: Line of our adapter, with `{arguments}`, which begin with the file of the Context.
        model: Argument of our adapter that names a model which an API serves.
        origin: Module of our adapter.
        note: Comment of the native line.
    """

    native: str
    ours: str
    model: str
    origin: str
    note: str = ""


LANGCHAIN: Final = Adapter(
    "embeddings = HuggingFaceEmbeddings(model_name={name})",
    "embeddings = CDEEmbeddings.load({arguments})",
    "model",
    "langchain_cde",
)
ANY: Final = LANGCHAIN._replace(note="in LangChain; else the same model in your own code")
LLAMA_INDEX: Final = Adapter(
    "Settings.embed_model = HuggingFaceEmbedding(model_name={name})",
    "Settings.embed_model = CDEEmbedding.load({arguments})",
    "model_name",
    "llama_index.embeddings.cde",
)


CHROMA: Final = Adapter(
    "embedding_function=SentenceTransformerEmbeddingFunction(model_name={name})",
    "client.get_collection(…, embedding_function=CDEFunction.load({arguments}))",
    "model",
    "cde_rag.adoption.chroma_function",
)


def model_line(embedder: Embedder, context: Path, adapter: Adapter, rest: str = "") -> str:
    """Return the line that makes the embedder in an application.

    Args:
        embedder: Embedder of the new vectors.
        context: File of its Context.
        adapter: Lines of its framework.
        rest: Settings that change with it, for the comment.
    """
    identity, arguments = embedder.context.identity, _quoted(str(context))
    served = identity.pooling == FUNCTION
    if not served and plain_name(embedder) is not None:
        return _commented(adapter.native.format(name=_quoted(common_name(identity.name))), adapter.note, rest)
    note = f"from {adapter.origin}"
    if served:
        arguments += f", {adapter.model}={_quoted(f'ADDRESS#{identity.name}')}"
        note += f"; ADDRESS of the API, or openai:{identity.name}; or your own class for {identity.name}"
    return _commented(adapter.ours.format(arguments=arguments), note, rest)


def _quoted(text: str) -> str:
    """Return a string of Python in double quotes; JSON escapes backslashes of Windows and quotes as Python does."""
    return json.dumps(text, ensure_ascii=False)


def _commented(line: str, *notes: str) -> str:
    found = "; ".join(filter(None, notes))
    return f"{line}  # {found}" if found else line
