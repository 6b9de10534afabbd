"""The command prepare."""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.output import INTERRUPTED, JsonOption, ProgressOption, one_line, print_json, printable
from cde_rag.errors import counted
from cde_rag_training.cli.recipes import (
    ColumnsOption,
    PairsArgument,
    RowsOption,
    StreamOption,
    columns_of,
    tell_skipped,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from jaxtyping import Float32

    from cde_rag_training.clustering.surrogate import Surrogate
    from cde_rag_training.data.duplicates import SetReport
    from cde_rag_training.data.pairs import Pair
    from cde_rag_training.data.reading import PairReader

SURROGATE = "minilm; tfidf: fast, needs no model; or a plain model: a folder, a hub id, or that of an API."
DIMS = 256  # of vectors by TF-IDF
WIDTH = 60  # characters of an example's text


def prepare(
    files: PairsArgument,
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder for the prepared pairs.")],
    start: Annotated[
        str, typer.Option(metavar="MODEL", help="Model whose tokenizer is used: start.model of the recipe.")
    ] = ("cde-mini"),
    max_length: Annotated[int, typer.Option(min=8, help="Maximum tokens of a text.")] = 256,
    surrogate: Annotated[str, typer.Option(help=SURROGATE)] = "minilm",
    surrogate_length: Annotated[
        int | None, typer.Option(min=8, help="Maximum tokens for minilm. [default: --max-length]")
    ] = None,
    source: Annotated[
        str | None, typer.Option(metavar="NAME", help="Source of rows without one. [default: the file's name]")
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Remove texts of this evaluation set (BEIR layout, or pairs); repeatable."),
    ] = None,
    keep_duplicates: Annotated[
        bool, typer.Option("--keep-duplicates", help="Keep near-duplicates among the pairs.")
    ] = False,
    columns: ColumnsOption = None,
    rows: RowsOption = None,
    stream: StreamOption = False,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip unusable rows.")] = False,
    lexical: Annotated[
        bool, typer.Option("--lexical", help='Also compute BM25 weights, for the filter rule "agreement".')
    ] = False,
    filter_surrogate: Annotated[
        str | None,
        typer.Option(help="Surrogate of the filter alone, by such a name. [default: the other one]"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Device of the surrogates, such as cuda. [default: cpu for minilm, cuda if any for models]"),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Cluster as in the paper: 100 steps, best of 3.")] = False,
    pack: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write one compressed file, such as p.zip.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of clusters and views.")] = 0,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Prepare pairs for training: tokens, vectors, clusters. Once; training then needs no faiss.

    A row has query and document, and may have source, domain, title or parent (the longer document that the document
    was cut from), hard_negatives, grade, query_prefix and document_prefix. Near-duplicates are removed and counted. To
    resume an interrupted command, run it again; finished steps are skipped.

    \b
    Examples:
      cde-rag-train prepare pairs.jsonl --output prepared
      cde-rag-train prepare faq.csv docs.parquet --output prepared \\
        --against scifact/ --pack prepared.zip
      cde-rag-train prepare hub:sentence-transformers/natural-questions \\
        --columns document=answer --rows 50000 --stream --output prepared
    """
    from cde_rag_training.clustering.clusters import LAPTOP, PAPER
    from cde_rag_training.clustering.surrogate import cached
    from cde_rag_training.data.preparation import PrepareConfig
    from cde_rag_training.data.preparation import prepare as run
    from cde_rag_training.data.reading import PairReader
    from cde_rag_training.networks.start import start_tokenizer

    _check_surrogates(surrogate, filter_surrogate, surrogate_length, device)
    if keep_duplicates and against:
        raise typer.BadParameter("pairs in --against are not kept; leave one of them out", param_hint="--against")
    csv.field_size_limit(sys.maxsize)
    shown = sys.stderr.isatty() if progress is None else progress
    reader = PairReader(*files, columns=columns_of(columns), source=source, skip_bad=skip_bad, rows=rows, stream=stream)
    try:
        tokenizer = start_tokenizer(start)
        pairs = _read(reader)
        length = surrogate_length or max_length
        name, embed = surrogate_of(surrogate, pairs, length, device=device)
        embed = cached(embed, name, output / "cache" / "surrogate")  # where the run looks for them again
        if not keep_duplicates:
            pairs = _without_duplicates(pairs, against or [], embed)
        filter_name, filter_embed = "", None
        if filter_surrogate is not None:
            filter_name, filter_embed = surrogate_of(filter_surrogate, pairs, length, device=device)
        config = PrepareConfig(
            max_length=max_length,
            surrogate=name,
            filter_surrogate=filter_name,
            clusters=replace(PAPER if paper else LAPTOP, seed=seed),
            lexical=lexical,
            seed=seed,
        )
        prepared = run(pairs, tokenizer, output, config, surrogate=embed, filter_surrogate=filter_embed, progress=shown)
        if pack is not None:
            prepared.pack(pack)
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped; {output} keeps the finished steps. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error
    counts = {"pairs": len(prepared), "texts": len(prepared.texts), "sources": len(prepared.source_names)}
    if as_json:
        print_json({"folder": str(output.resolve()), **counts, "skipped": reader.skipped})
    else:
        typer.echo(f"{output}: {', '.join(f'{count:,} {name}' for name, count in counts.items())}")


def _check_surrogates(surrogate: str, filter_surrogate: str | None, length: int | None, device: str | None) -> None:
    if filter_surrogate == surrogate:
        raise typer.BadParameter(f"{surrogate} clusters already; leave it out", param_hint="--filter-surrogate")
    if "minilm" not in (surrogate, filter_surrogate) and length is not None:
        reads = "uncut texts" if surrogate == "tfidf" else "texts to its own limit"
        raise typer.BadParameter(f"{surrogate} reads {reads}; leave it out", param_hint="--surrogate-length")
    check_surrogate_device(device, surrogate, filter_surrogate)


def check_surrogate_device(device: str | None, *surrogates: str | None) -> None:
    """Refuse a device that torch does not have, or that none of the surrogates would run on."""
    from cde_rag.models.named import is_served
    from cde_rag_training.processes import check_device

    if device is not None:
        if all(each in ("bm25", "tfidf", None) or is_served(each) for each in surrogates):
            raise typer.BadParameter("no surrogate runs on a device of its own; leave it out", param_hint="--device")
        check_device(device)


def _read(reader: "PairReader") -> "list[Pair]":
    pairs = list(reader)
    tell_skipped(reader.skipped, reader.reports)
    return pairs


def surrogate_of(
    kind: str, pairs: "list[Pair] | None", max_length: int, *, device: str | None = None
) -> "tuple[str, Surrogate]":
    """Return the surrogate, loaded or fitted at its first use, and a name of all that its vectors depend on.

    Without pairs TF-IDF is fitted to the first texts that it is given; its name is empty then. Raises as `named`.
    """
    from cde_rag_training.clustering.surrogate import minilm, named, tfidf_svd
    from cde_rag_training.data.text_rows import pairs_digest

    if kind not in ("minilm", "tfidf"):
        return named(kind, device=device)
    made: list[Surrogate] = []

    def embed(texts: "Sequence[str]") -> "Float32[np.ndarray, 'texts dim']":
        if not made and kind == "minilm":
            made.append(minilm(max_length=max_length, device=device or "cpu"))
        elif not made:
            fit = texts if pairs is None else [text for pair in pairs for text in (pair.query, pair.document)]
            made.append(tfidf_svd(fit, dims=DIMS))
        return made[0](texts)

    if kind == "minilm":
        return f"minilm-{max_length}", embed
    return "" if pairs is None else f"tfidf-{pairs_digest(pairs)[:16]}", embed


def _without_duplicates(pairs: "list[Pair]", against: list[Path], embed: "Surrogate") -> "list[Pair]":
    from cde_rag_training.clustering.near_duplicates import DuplicateConfig
    from cde_rag_training.data.duplicates import read_evaluation, without_near_duplicates

    sets = [read_evaluation(path) for path in against]
    found = without_near_duplicates(pairs, DuplicateConfig(), surrogate=embed, against=sets)
    for one in found.report(examples=1):
        _tell(one)
    typer.echo(f"{counted(len(pairs), 'pair')}, {len(found.pairs):,} without near-duplicates", err=True)
    return found.pairs


def _tell(report: "SetReport") -> None:
    """Print the pairs that one source lost to near-duplicates in another set to stderr."""
    counts = ", ".join(f"{count:,} by {side} ({rule})" for (side, rule), count in report.by_rule.items())
    typer.echo(printable(f"  {report.source}: taken out because of {report.where}: {counts}"), err=True)
    for removal in report.examples:
        texts = removal.pair.query if removal.side == "query" else removal.pair.document, removal.found
        typer.echo(f"    {' ≈ '.join(one_line(text, WIDTH) for text in texts)}", err=True)
