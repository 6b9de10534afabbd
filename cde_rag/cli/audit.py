"""The command audit."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.collections import TenantOption, existing, open_collection
from cde_rag.cli.foreign import (
    TextOption,
    VectorOption,
    check_no_tenant,
    embedder_of,
    is_foreign,
    named_by_stamp,
    prefixes_of,
)
from cde_rag.cli.output import JsonOption, print_json, printable

if TYPE_CHECKING:
    from cde_rag.indexing.audit import Audit


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="qdrant:URL#NAME, qdrant:FOLDER#NAME, chroma:FOLDER#NAME, chroma:URL#NAME, lancedb:FOLDER#NAME, "
            "pgvector:URL#TABLE, langchain-faiss:FOLDER, llamaindex:FOLDER, open-webui:FOLDER; or the folder or "
            "address of a collection of cde-rag.",
        ),
    ],
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model to compare with: the one that should have made the vectors."),
    ] = None,
    context: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Context of a contextual model, *.context.safetensors.")
    ] = None,
    text: TextOption = None,
    vector: VectorOption = None,
    document_prefix: Annotated[str | None, typer.Option(help='Such as "passage: ". [default: the model\'s]')] = None,
    query_prefix: Annotated[str | None, typer.Option(help='Such as "query: ". [default: the model\'s]')] = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of texts to embed again.")] = 64,
    seed: Annotated[int, typer.Option(help="Random seed of the sample; Qdrant and PostgreSQL use their own.")] = 0,
    tenant: TenantOption = None,
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
    if is_foreign(target):
        check_no_tenant(tenant)
        with source_of(target, text=text, vector=vector, seed=seed) as source:
            stamped = named_by_stamp(source) if model is None and context is None else None
            if stamped is not None:
                model, prefixes = stamped[0], prefixes or stamped[1]
            found = compare(source, embedder_of(model, context, prefixes), sample=sample)
    else:
        with open_collection(existing(target, tenant), model) as opened:  # each passage with its siblings
            found = opened.audit(sample=sample, seed=seed)
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
    text: TextOption = None,
    vector: VectorOption = None,
    document_prefix: Annotated[str | None, typer.Option(help='Such as "passage: ". [default: the model\'s]')] = None,
    query_prefix: Annotated[str | None, typer.Option(help='Such as "query: ". [default: the model\'s]')] = None,
    sample: Annotated[int, typer.Option(min=1, help="Number of texts to embed again before.")] = 64,
    as_json: JsonOption = False,
) -> None:
    """Write a stamp into another application's store: the model, prefixes and context of its vectors.

    Audits a sample before, and writes nothing unless the model reproduces all of it. The stamp is JSON in the metadata
    of the collection or column, or the comment of the table; other programs can read it. Records stay as they are.

    \b
    Examples:
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
