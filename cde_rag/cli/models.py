"""The command models."""

from dataclasses import asdict

import typer

from cde_rag.cli.output import JsonOption, print_json

_COLUMNS = ("name", "where", "context", "languages", "dim", "tokens", "MB", "cost", "licence")
WITHOUT_TORCH = (
    "All of these run without torch. So does any other SentenceTransformer whose encoder is a BERT, RoBERTa, XLM-R or "
    "ModernBERT, or a static table; others need it, with sentence-transformers (extra interop)."
)


def models(as_json: JsonOption = False) -> None:
    """List models for --model: bundled and installed ones, and a few that are worth a download.

    Any other SentenceTransformer is taken, too: by its hub id or folder; and models of an API, as
    openai:text-embedding-3-small or http://localhost:8000/v1#bge-m3. The cost is the time of a text as a multiple of
    all-MiniLM-L6-v2's. Models of the hub need the extra hub, and a network once.

    \b
    Examples:
      cde-rag models --json
      cde-rag index notes/ notes.faiss --model Snowflake/snowflake-arctic-embed-xs
      cde-rag evaluate notes/ --model cde-base-1
    """
    from cde_rag.models.catalogue import known_models

    found = list(known_models())
    if as_json:
        print_json([asdict(each) for each in found])
        return
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for each in found:
        size = f"{each.megabytes:,}" if each.megabytes else "–"
        tokens = f"{each.tokens:,}" if each.tokens else "–"
        dim, cost = (str(each.dim), f"{each.cost:g}") if each.dim else ("–", "–")
        rows.append((each.name, each.where, each.context, each.languages, dim, tokens, size, cost, each.licence))
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    for row in rows:
        cells = [
            text.rjust(width) if name in ("dim", "tokens", "MB", "cost") else text.ljust(width)
            for name, text, width in zip(_COLUMNS, row, widths, strict=True)
        ]
        typer.echo("  ".join(cells).rstrip())
    typer.echo(WITHOUT_TORCH, err=True)
