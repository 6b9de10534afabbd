"""The command audit."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.collections import existing, open_collection
from cde_rag.cli.output import JsonOption, print_json, printable
from cde_rag.errors import ContextMissingError, ModelError

if TYPE_CHECKING:
    from cde_rag.collection.collection import Collection
    from cde_rag.embedders.protocol import Embedder
    from cde_rag.indexing.audit import Audit, Source
    from cde_rag.models.model import Model


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="qdrant:URL#NAME, qdrant:FOLDER#NAME, chroma:FOLDER#NAME, chroma:URL#NAME, lancedb:FOLDER#NAME, "
            "pgvector:URL#TABLE, langchain-faiss:FOLDER, llamaindex:FOLDER; or the folder or address of a collection "
            "of cde-rag.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model to compare with: the one that should have made the vectors."),
    ] = None,
    context: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Context of a contextual model, *.context.safetensors.")
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="Payload key or column of the text, or langchain, llamaindex for Qdrant."),
    ] = None,
    vector: Annotated[str | None, typer.Option(metavar="NAME", help="Vector or column, if there are several.")] = None,
    document_prefix: Annotated[str | None, typer.Option(help='Such as "passage: ". [default: the model\'s]')] = None,
    query_prefix: Annotated[str | None, typer.Option(help='Such as "query: ". [default: the model\'s]')] = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of texts to embed again.")] = 64,
    seed: Annotated[int, typer.Option(help="Random seed of the sample; Qdrant and PostgreSQL use their own.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Check that stored vectors were made from their texts by a given model (and context).

    Embeds a sample of the texts again, and reports the share of vectors that the model reproduces, mixed vectors of
    several models or contexts, and remedies. A stamp in the store names the model by default, and is compared. Exit
    code 1 if not all are reproduced, or the stamp is of another model. Adds, changes and deletes no
    record; the clients of Qdrant and Chroma write files of their own when they open a local folder.

    \b
    Examples:
      cde-rag audit qdrant:http://localhost:6333#papers \\
        --model sentence-transformers/all-MiniLM-L6-v2
      cde-rag audit chroma:chroma_db#papers --model cde-mini \\
        --context papers.context.safetensors
      cde-rag audit 'pgvector:postgresql://me@localhost/app#chunks' \\
        --model intfloat/e5-small-v2 \\
        --document-prefix "passage: " --query-prefix "query: "
      # a collection of cde-rag stores its model and context
      cde-rag audit papers.faiss
    """
    from cde_rag.adoption.audit_sources import source_of
    from cde_rag.indexing.audit import audit as compare

    prefixes = prefixes_of(document_prefix, query_prefix)
    if is_collection(target):
        found = _of_collection(target, model, sample, seed)
    else:
        with source_of(target, text=text, vector=vector, seed=seed) as source:
            stamped = _named_by_stamp(source) if model is None and context is None else None
            if stamped is not None:
                model, prefixes = stamped[0], prefixes or stamped[1]
            found = compare(source, embedder_of(model, context, prefixes), sample=sample)
    _print(found, as_json=as_json)
    if found.others or found.disputes:
        raise typer.Exit(1)


def stamp(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="chroma:…, qdrant:…, lancedb:… or pgvector:…, as for audit.", show_default=False
        ),
    ],
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Model that made the vectors.")] = None,
    context: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Context of a contextual model, *.context.safetensors.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="KEY", help="Payload key or column of the text.")] = None,
    vector: Annotated[str | None, typer.Option(metavar="NAME", help="Vector or column, if there are several.")] = None,
    document_prefix: Annotated[str | None, typer.Option(help='Such as "passage: ". [default: the model\'s]')] = None,
    query_prefix: Annotated[str | None, typer.Option(help='Such as "query: ". [default: the model\'s]')] = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of texts to embed again before.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Write a stamp into another application's store: the model, prefixes and context of its vectors.

    Audits a sample before, and writes nothing unless the model reproduces all of it. The stamp is JSON in the metadata
    of the collection or column, or the comment of the table; other programs can read it. Records stay as they are.

    \b
    Example:
      cde-rag stamp chroma:chroma_db#papers \\
        --model sentence-transformers/all-MiniLM-L6-v2
    """
    from cde_rag.adoption.audit_sources import source_of
    from cde_rag.indexing.audit import stamp_source

    embedder = embedder_of(model, context, prefixes_of(document_prefix, query_prefix))
    with source_of(target, text=text, vector=vector) as source:
        found = stamp_source(source, embedder, sample=sample)
    _print(found, as_json=as_json)


def _print(found: "Audit", *, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(found), "share": found.share, "mixed": found.mixed, "advice": found.advice})
    else:
        typer.echo(printable(found.advice))


def _named_by_stamp(source: "Source") -> tuple[str, dict[str, str]] | None:
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


def is_collection(target: str) -> bool:
    """Return True if a target is the folder or address of a cde-rag collection."""
    from cde_rag.adoption.audit_sources import KINDS

    return not target.startswith(tuple(f"{kind}:" for kind in KINDS))


def open_foreign(target: str, model: str | None, tenant: str | None) -> "Collection":
    """Open the copy of another application's index, after an audit; its stamp names the model by default."""
    from cde_rag.adoption.audit_sources import source_of
    from cde_rag.adoption.foreign_search import foreign_collection
    from cde_rag.context.cache import cached_context
    from cde_rag.embedders.active import loaded

    if tenant is not None:
        raise typer.BadParameter("an index of another application has no tenants", param_hint="--tenant")
    with source_of(target) as source:
        fingerprint = source.stamp() if model is None else None
        context = None if fingerprint is None else cached_context(fingerprint)
        stamped = _named_by_stamp(source) if model is None and context is None else None
        name, prefixes = (model, None) if stamped is None else stamped
        embedder = embedder_of(name, None, prefixes) if context is None else loaded(context)
        opened = foreign_collection(source, embedder)
        if lost := source.count() - opened.store.count():
            typer.echo(f"{lost:,} rows without a text or with a vector of another length are not searched.", err=True)
    return opened


def _of_collection(place: str, model: str | None, sample: int, seed: int) -> "Audit":
    """Audit a cde-rag collection, each passage with its siblings."""
    with open_collection(existing(place), model) as opened:
        return opened.audit(sample=sample, seed=seed)


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
