"""Indexes of other applications: the embedder that options or a stamp name, and the copy that is searched."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.errors import ContextMissingError, ModelError, counted

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.embedders.protocol import Embedder
    from cde_rag.indexing.audit import Source
    from cde_rag.models.model import Model

TextOption = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Payload key or column of the text, or langchain, llamaindex for Qdrant."),
]
VectorOption = Annotated[str | None, typer.Option(metavar="NAME", help="Vector or column, if there are several.")]


def named_by_stamp(source: "Source") -> tuple[str, dict[str, str]] | None:
    """Return model and prefixes that a store's stamp names; None without a stamp.

    Raises:
        StoreFormatError: The stamp cannot be read.
    """
    from cde_rag.errors import StoreFormatError
    from cde_rag.indexing.stamp_reader import StampError, parse
    from cde_rag.indexing.stamping import Stampable
    from cde_rag.models.named import is_served
    from cde_rag.models.plain.function_model import FUNCTION

    text = source.stamp_text() if isinstance(source, Stampable) else None
    if text is None:
        return None
    try:
        found = parse(text)
    except StampError as error:
        raise StoreFormatError(f"{source.target}: its stamp cannot be read. {error} Or give --model NAME.") from error
    name = found.model["name"]
    if is_served(name):
        raise ModelError(
            f"{source.target}: its stamp names {name}. Nothing is sent to a stored address: give --model {name} if "
            "you trust it."
        )
    if found.model["pooling"] == FUNCTION:
        raise ModelError(
            f"{source.target}: its stamp names {name}, a function or the model of an API. Give --model openai:{name}, "
            f"or its address, such as --model http://localhost:8000/v1#{name}."
        )
    return name, dict(found.prefixes)


def is_foreign(target: str) -> bool:
    """Return True if a target names an index of another application, False for the place of a collection."""
    from cde_rag.adoption.audit_sources import KINDS

    return target.startswith(tuple(f"{kind}:" for kind in KINDS))


def check_no_tenant(tenant: str | None) -> None:
    """Refuse the name of a tenant of another application's index."""
    if tenant is not None:
        raise typer.BadParameter("an index of another application has no tenants", param_hint="--tenant")


def open_foreign(
    target: str, model: str | None, tenant: str | None, *, text: str | None = None, vector: str | None = None
) -> "Collection":
    """Open the copy of another application's index, after an audit; its stamp names the model by default.

    A Context is that of the stamp, or the one that a move has kept next to the store.
    """
    from cde_rag.adoption.audit_sources import source_of
    from cde_rag.adoption.foreign_search import foreign_collection

    check_no_tenant(tenant)
    with source_of(target, text=text, vector=vector) as source:
        opened = foreign_collection(source, _made_by(source, model), target, text=text, vector=vector)
        if lost := source.count() - opened.store.count():
            typer.echo(
                f"Not searched: {counted(lost, 'row')} without a text or with a vector of another length.", err=True
            )
    return opened


def _made_by(source: "Source", model: str | None) -> "Embedder":
    from cde_rag.adoption.move_journal import moved_context
    from cde_rag.context.cache import cached_context
    from cde_rag.embedders.active import loaded

    fingerprint = source.stamp() if model is None else None
    context = None if fingerprint is None else cached_context(fingerprint)
    if context is not None:
        return loaded(context)
    kept = moved_context(source)
    try:
        name, prefixes = (named_by_stamp(source) if model is None else None) or (model, None)
        return loaded(kept) if name is None and kept is not None else embedder_of(name, None, prefixes)
    except ContextMissingError as error:
        if kept is not None:
            return loaded(kept, model=model)
        raise ContextMissingError(
            f"{source.target}: expected the Context of its vectors next to it, where cde-rag reembed keeps it, found "
            f"none. {model or 'Its model'} embeds in one."
        ) from error


def prefixes_of(document: str | None, query: str | None) -> dict[str, str] | None:
    """Return the prefixes that two options name; None if neither is given."""
    given = {"document": document, "query": query}
    return None if document is query is None else {role: prefix or "" for role, prefix in given.items()}


def embedder_of(model: str | None, context: Path | None, prefixes: dict[str, str] | None) -> "Embedder":
    """Load the embedder named by the options."""
    from cde_rag import Context
    from cde_rag.embedders.active import loaded
    from cde_rag.models.named import named_model

    if context is not None:
        if prefixes is not None:
            raise typer.BadParameter("a context has its model's prefixes in it", param_hint="--document-prefix")
        kept = Context.load(context)
        try:
            return loaded(kept, model=model)
        except ModelError as error:
            if model is None:
                raise
            made = f"{context} was made by the model {kept.identity.name!r}, and {model!r} is not loaded."
            raise ModelError(f"{made} {error} A model without contexts needs no --context.") from error
    if model is None:
        raise typer.BadParameter("name the claimed model of the vectors", param_hint="--model")
    return plain_embedder(named_model(model, prefixes=prefixes))


def plain_embedder(model: "Model") -> "Embedder":
    """Return the embedder of a model that reads no context.

    Raises:
        ContextMissingError: The model reads one.
    """
    from cde_rag.embedders.contextual import ContextualEmbedder
    from cde_rag.embedders.corpus_contexts import first_context

    if not model.identity.is_plain:
        raise ContextMissingError(
            f"{model.identity.name} embeds in a context, and none is named. Give --context FILE, which "
            "embedder.context.save(file) wrote when the vectors were made."
        )
    return ContextualEmbedder(model, first_context(model))
