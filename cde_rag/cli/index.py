"""The command index: its options and their help."""

import csv
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import typer

from cde_rag._files import user_path
from cde_rag.cli.collections import CollectionArgument, RayOption, WorkersOption
from cde_rag.cli.index_run import IndexOptions, plan, run, run_on_ray
from cde_rag.cli.output import JsonOption, ProgressOption

_ROLES = ("id", "text", "title")


def _field_names(text: str) -> dict[str, str]:
    named = dict[str, str]()
    for part in text.split(","):
        role, _, field = part.partition("=")
        if role not in _ROLES or not field or role in named:
            raise typer.BadParameter(f"expected id=FIELD,text=FIELD,title=FIELD, or some of them, found {text!r:.80}")
        named[role] = field
    return named


def _encoding(text: str) -> str:
    from cde_rag.readers.reading_rules import check_encoding

    try:
        check_encoding(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _roles(fields: dict[str, str] | None, old: Mapping[str, str | None]) -> dict[str, str]:
    """Return the fields that --fields names, or the options before it, which are deprecated."""
    given = {role: field for role, field in old.items() if field is not None}
    if given:
        names = ",".join(f"{role}={field}" for role, field in given.items())
        typer.echo(f"--{next(iter(given))}-field is deprecated, and goes in 1.0. Write: --fields {names}", err=True)
    return {**given, **(fields or {})}


def index(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="Files or folders of documents; - for JSONL on stdin."),
    ],
    collection: CollectionArgument,
    parent_key: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Field that names the longer document a record was cut from; records of one parent are embedded as "
            "siblings. [default: the file, for text files]",
        ),
    ] = None,
    headers: Annotated[
        str | None,
        typer.Option(
            metavar="FIELDS",
            help="Comma-separated fields, such as section of Markdown files, to insert between title and text for "
            "embedding and BM25; helps queries that name their page. [default: the collection's; none for a new one]",
        ),
    ] = None,
    alone: Annotated[
        bool,
        typer.Option("--alone", help="Embed passages of text files without siblings, for queries about details."),
    ] = False,
    windows: Annotated[
        bool,
        typer.Option(
            "--windows",
            help="In a new collection, embed texts longer than the model's window in windows. [default: truncate them]",
        ),
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip and report unusable records and text files that are named, too.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Write nothing if a file in a folder cannot be read. [default: skip it]")
    ] = False,
    sync: Annotated[
        bool, typer.Option("--sync", help="Afterwards delete passages that are not in the sources.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Let --sync or --watch delete more than half of the passages unconfirmed.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Follow the folders after the run, until Ctrl-C: read changed files again, and delete passages of "
            "removed ones. Needs the extra watch.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the numbers of records to add, embed and delete; write nothing.")
    ] = False,
    fields: Annotated[
        dict[str, str] | None,
        typer.Option(
            parser=_field_names,
            metavar="id=FIELD,text=FIELD,title=FIELD",
            help="Fields of records that have these roles, or some of them; kept, for files that have them. "
            "[default: the collection's; else text and title, and id, _id or a digest of text and parent]",
        ),
    ] = None,
    id_field: Annotated[str | None, typer.Option(hidden=True)] = None,  # before --fields; goes in 1.0
    text_field: Annotated[str | None, typer.Option(hidden=True)] = None,
    title_field: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SUFFIX",
            help="Also read files of this suffix as text, such as .xml, or . for those without; repeatable.",
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        typer.Option(
            parser=_encoding,
            metavar="NAME",
            help="Encoding of files that are not UTF-8 and have no byte order mark; kept. [default: a guess, which is "
            "printed]",
        ),
    ] = None,
    code: Annotated[
        bool | None,
        typer.Option(
            "--code/--no-code",
            help="Read the source code in folders. [default: the collection's; for a new one, if most texts are code]",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum tokens of a passage of text files, as the model counts them; kept in the collection. "
            "[default: the collection's; 160 for a new one]",
        ),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(
            min=0, help="Tokens that a passage repeats of the one before; kept. [default: the collection's, 0]"
        ),
    ] = None,
    max_characters: Annotated[
        int | None, typer.Option(min=1, help="Maximum characters of a passage, in place of tokens; kept.")
    ] = None,
    max_line_bytes: Annotated[
        int,
        typer.Option(
            min=1, help="Longest line of JSONL or CSV; a longer one is a bad record. Also the longest JSON array."
        ),
    ] = 64 * 2**20,
    context_size: Annotated[
        int | None,
        typer.Option(min=1, help="Documents sampled for a new collection's context. [default: 512, or the model's]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of that sample.")] = 0,
    workers: WorkersOption = None,
    ray: RayOption = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Tenant of the documents. COLLECTION then holds one collection per tenant, each in the null context "
            "until recontextualize --tenant NAME.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Listed by cde-rag models. [default: the collection's own; cde-mini for a new one]"),
    ] = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Upsert documents into a collection, which is created if necessary.

    Reads JSONL (fields id, text and optionally title), CSV and TSV with a header (these also as .gz), Parquet, a JSON
    array of objects, and text, Markdown and notebook files, which are split into passages; with the extra documents
    also PDF, HTML, Word, PowerPoint.
    Other fields become metadata for filters; columns of a CSV that hold only numbers become numbers. In a folder, files
    of rows are read if they have the field of texts.

    A new collection first samples its context from the documents and keeps it; later documents are embedded in the same
    context. Unchanged documents are not embedded again: to resume an interrupted command, run it again.

    A record replaces the stored one with the same id. A text file that is read again replaces all its passages; one
    that cannot be read keeps them, and so does one that left its folder, until --sync or --watch. The id of a passage
    consists of the folder's name and the file's path in it (docs/guide/start.md#0), also if such a file is given by
    itself later, or else of the file's absolute path (/home/me/start.md#0).

    \b
    Examples:
      cde-rag index papers.jsonl papers.faiss
      cde-rag index papers.jsonl papers.qdrant  # stored by Qdrant Edge
      # folder of text and Markdown, split into passages
      cde-rag index docs/ docs.faiss
      # also delete documents that left the folder
      cde-rag index docs/ docs.faiss --sync
      cde-rag index docs/ docs.faiss --sync --dry-run  # show the changes first
      cde-rag index docs/ docs.faiss --watch  # keep it in step with the folder
      cde-rag index src/ code.faiss --code --as-text .toml
      # headings in front of each passage
      cde-rag index docs/ docs.faiss --headers section
      cde-rag index chunks.parquet books.faiss --parent-key book
      cde-rag index acme.jsonl customers.faiss --tenant acme
      # embed in eight processes
      cde-rag index papers.parquet papers.faiss --workers 8
      # read and embed on a Ray cluster
      cde-rag index one.parquet two.parquet papers.faiss --ray auto
      zcat dump.jsonl.gz | cde-rag index - dump.faiss --skip-bad
    """
    from cde_rag.readers import Fields, RecordReader

    csv.field_size_limit(sys.maxsize)
    roles = _roles(fields, {"id": id_field, "text": text_field, "title": title_field})
    reader = RecordReader(
        *sources,
        fields=Fields(parent=parent_key, **roles),
        skip_bad=skip_bad or (False if strict else "in folders"),
        max_line_bytes=max_line_bytes,
        as_text=as_text or (),
        guess_encoding=True,
    )
    if alone:
        reader.fields = replace(reader.fields, parent=None)
    _check_together(parent_key, headers, tenant, alone=alone, windows=windows)
    if strict and skip_bad:
        raise typer.BadParameter("it goes not with --skip-bad; leave one of them out", param_hint="--strict")
    options = IndexOptions(
        sources=sources,
        path=collection,
        parent_key=parent_key,
        alone=alone,
        headers=None if headers is None else [name.strip() for name in headers.split(",") if name.strip()],
        windows=windows,
        tenant=tenant,
        changes=_changes(max_tokens, overlap, max_characters, code=code, encoding=encoding),
        model=model,
        context_size=context_size,
        seed=seed,
        sync=sync,
        yes=yes,
        workers=workers,
        shown=progress,
        watch=watch,
        as_json=as_json,
    )
    if watch:
        others = {"--ray": ray is not None, "--dry-run": dry_run, "--strict": strict}
        _check_watch(sources, [name for name, given in others.items() if given])
    if ray is not None:
        _check_ray("-" in sources or skip_bad or sync or dry_run or bool(as_text) or tenant is not None)
        run_on_ray(reader, options, ray)
    elif dry_run:
        plan(reader, options)
    else:
        run(reader, options)


def _changes(
    max_tokens: int | None,
    overlap: int | None,
    max_characters: int | None,
    *,
    code: bool | None,
    encoding: str | None,
) -> dict[str, Any]:
    """Return the rules of reading that options change."""
    given = {
        "tokens": max_tokens,
        "characters": max_characters,
        "overlap": overlap,
        "code": code,
        "encoding": encoding,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    if "tokens" in changes and "characters" in changes:
        raise typer.BadParameter("it goes not with --max-tokens; leave one of them out", param_hint="--max-characters")
    return changes


def _check_ray(excluded: bool) -> None:
    if excluded:
        named = "--skip-bad, --sync, --dry-run, --as-text, --tenant and - for stdin do not go with it"
        raise typer.BadParameter(named, param_hint="--ray")


def _check_watch(sources: list[str], excluded: list[str]) -> None:
    if excluded:
        raise typer.BadParameter(f"{excluded[0]} does not go with it; leave one of them out", param_hint="--watch")
    if other := next((source for source in sources if not user_path(source).is_dir()), None):
        found = f"expected folders, found {other}; name the folder that it is in, or leave --watch out"
        raise typer.BadParameter(found, param_hint="--watch")


def _check_together(
    parent_key: str | None, headers: str | None, tenant: str | None, *, alone: bool, windows: bool
) -> None:
    """Refuse options that do not go together."""
    if alone and parent_key is not None:
        raise typer.BadParameter("without siblings there is no parent key; leave one of them out", param_hint="--alone")
    if headers is not None and tenant is not None:
        raise typer.BadParameter("collections of tenants have none; leave it out", param_hint="--headers")
    if windows and tenant is not None:
        raise typer.BadParameter("it is for recontextualize --tenant NAME --windows", param_hint="--windows")
