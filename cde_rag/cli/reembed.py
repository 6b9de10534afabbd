"""The commands reembed and release, and the rollback of a move."""

import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cde_rag.cli.foreign import TextOption, VectorOption, prefixes_of
from cde_rag.cli.output import (
    JsonOption,
    ProgressOption,
    clock,
    print_fields,
    print_json,
    printable,
    progress_bar,
    updating,
)
from cde_rag.errors import counted

if TYPE_CHECKING:
    from cde_rag.adoption.move_plan import MovePlan
    from cde_rag.adoption.reembedding import Reembedding, Switched
    from cde_rag.embedders.protocol import Embedder

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="chroma:FOLDER#NAME, chroma:URL#NAME, qdrant:URL#NAME, qdrant:FOLDER#NAME, lancedb:FOLDER#NAME, "
        "pgvector:URL#TABLE, langchain-faiss:FOLDER, llamaindex:FOLDER or open-webui:FOLDER.",
    ),
]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="State of the move. [default: next to the store; for a server in the present folder]"
    ),
]
OldModelOption = Annotated[
    str | None, typer.Option("--from", metavar="NAME", help="Model that made the old vectors, to check and compare.")
]
OldContextOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Context of the old model, if it is contextual.")
]


def reembed(
    target: TargetArgument,
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="New model: any that audit takes. A contextual one samples the texts."),
    ] = None,
    context: Annotated[Path | None, typer.Option(metavar="FILE", help="Context of the new model, made before.")] = None,
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible API that serves the new model.")
    ] = None,
    document_prefix: Annotated[str | None, typer.Option(help='Such as "passage: ". [default: the model\'s]')] = None,
    query_prefix: Annotated[str | None, typer.Option(help='Such as "query: ". [default: the model\'s]')] = None,
    old_model: OldModelOption = None,
    from_context: OldContextOption = None,
    text: TextOption = None,
    vector: VectorOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and write nothing.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Switch: the application's model is changed at the same time.")
    ] = False,
    sample: Annotated[int, typer.Option(min=1, help="Texts that are embedded and compared before.")] = 256,
    judged: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Judged questions to compare by, as for evaluate. [default: generated ones]"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of samples.")] = 0,
    journal: JournalOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the vectors of another application to another model, and back.

    Makes the new vectors next to the old ones, which the application goes on using; compares a sample; prints the line
    of the application that names the model; and switches when that is confirmed. A model that finds less, or does not
    read a good part of the texts, is advised against: exit code 1, unless with --yes. Run it again to resume it after a
    kill, or to bring later writes of the application. cde-rag rollback TARGET returns to the old vectors,
    cde-rag release TARGET deletes them.

    \b
    Examples:
      cde-rag reembed chroma:chroma_db#papers --dry-run \\
        --from sentence-transformers/all-MiniLM-L6-v2 \\
        --model intfloat/multilingual-e5-small
      cde-rag reembed langchain-faiss:faiss_index --model cde-mini
      cde-rag reembed llamaindex:storage --model nomic-embed-text \\
        --base-url http://localhost:11434/v1
    """
    from cde_rag.adoption.move_plan import plan_move, unread_advice, unread_in
    from cde_rag.adoption.reembedding import reembedding
    from cde_rag.evaluation.judged_questions import read_judged_questions

    questions = [] if judged is None else read_judged_questions(judged)  # a bad file is found before a model is loaded
    with reembedding(target, journal=journal, text=text, vector=vector, seed=seed) as move:
        prefixes = prefixes_of(document_prefix, query_prefix)
        embedder = _embedder(move, model, context, base_url, prefixes)
        old = _old(old_model, from_context)
        state = move.state
        advice, is_against = "", False
        if dry_run or (state is None and (old is not None or questions)):
            plan = plan_move(move.source, embedder, old, sample=sample, judged=questions)
            if dry_run:
                _print_plan(plan, move.line(embedder), as_json)
                raise typer.Exit(int(plan.advises_against and not yes))
            advice, is_against = plan.advice, plan.advises_against
        elif state is None:
            unread = unread_in(move.source, embedder, sample=sample)
            advice, is_against = unread_advice(unread, embedder.context.identity.name), unread.is_much
        if advice:
            typer.echo(printable(advice), err=True)
        if is_against and not yes:
            typer.echo("Nothing was written. With --yes the vectors are moved all the same.", err=True)
            raise typer.Exit(1)
        same = _as_given(move, text=text, vector=vector, journal=journal)
        _run(move, embedder, same, confirmed=yes, progress=progress, as_json=as_json)


def release(
    target: TargetArgument,
    text: TextOption = None,
    vector: VectorOption = None,
    journal: JournalOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a move: delete the vectors that are not in use, after a switch the old ones.

    Restart programs that opened the store before the switch: they may hold the old vectors.

    \b
    Examples:
      cde-rag release chroma:chroma_db#papers
    """
    from cde_rag.adoption.reembedding import reembedding

    with reembedding(target, journal=journal, text=text, vector=vector) as move:
        state = move.state
        move.release()
        kept = None if state is None else move.journal.context_file(state.fingerprint)
    found = str(kept) if kept is not None and kept.exists() else None
    if as_json:
        print_json({"released": True, "context": found})
        return
    typer.echo("Released. The vectors in use are the only ones.")
    if found is not None:
        typer.echo(printable(f"Keep {found}: a line that names it needs it."))


def rollback_move(
    target: str,
    old_model: str | None,
    from_context: Path | None,
    *,
    text: str | None,
    vector: str | None,
    journal: Path | None,
    as_json: bool,
) -> None:
    """Return to the old vectors of a move."""
    from cde_rag.adoption.reembedding import reembedding

    with reembedding(target, journal=journal, text=text, vector=vector) as move:
        done = move.rollback(_old(old_model, from_context))
    if as_json:
        print_json(asdict(done))
    else:
        typer.echo(
            f"The old vectors are in use again{_gap(done)}.{_brought(done)} Give the application its old model again."
        )


def _as_given(move: "Reembedding", *, text: str | None, vector: str | None, journal: Path | None) -> str:
    """Return the arguments by which rollback and release find a move; `TARGET` for one that messages do not show."""
    target = move.source.target
    given = {"--text": text, "--vector": vector, "--journal": None if journal is None else str(journal)}
    options = [part for name, value in given.items() if value is not None for part in (name, value)]
    return shlex.join(["TARGET" if "…" in target else target, *options])


def _run(
    move: "Reembedding",
    embedder: "Embedder",
    same: str,
    *,
    confirmed: bool,
    progress: bool | None,
    as_json: bool,
) -> None:
    """Copy, and switch if that is confirmed; catch up if it was."""
    state, shown = move.state, dict[str, Any]()
    is_before = state is None or state.step in ("copying", "returning", "returned")
    with progress_bar("reembed", "rows", shown=progress) as update:
        if is_before:
            copied = move.copy(embedder, on_progress=updating(update))
            shown = asdict(copied)
            typer.echo(printable(_copied(shown, copied.audit.sampled)), err=True)
        line = move.line(embedder)
        is_begun = state is not None and state.step == "switching"  # perhaps days ago, and it was refused then
        if (is_before or is_begun) and not (confirmed or _confirmed(line)):
            if as_json:
                print_json(shown | {"switched": False, "line": line})
            else:
                found = "A switch was begun, and has not ended." if is_begun else "Nothing is switched yet."
                typer.echo(
                    printable(
                        f"{found} The application needs this from the switch on:\n  {line}\n"
                        "To switch, run the same command with --yes, and change the application at the same time."
                    )
                )
            return
        switched = move.switch(embedder, on_progress=updating(update))
        line = move.line(embedder)  # which may name what came meanwhile
    if as_json:
        print_json(shown | {"switched": True, "line": line, **asdict(switched)})
        return
    context = move.journal.context_file(embedder.fingerprint)
    named = f"Take {context} along to where the application runs.\n" if context.name in line else ""
    typer.echo(
        printable(
            f"The new vectors are in use{_gap(switched)}.{_brought(switched)} The application needs this from now on:\n"
            f"  {line}\n"
            f"{named}With its old line it finds wrong rows, and stores vectors that are not found, without an error.\n"
            f"Back to the old vectors: cde-rag rollback {same}\n"
            f"When all its programs are restarted, delete them: cde-rag release {same}"
        )
    )


def _gap(done: "Switched") -> str:
    """Return the time in which there were no vectors, if there was any."""
    return f", after {1000 * done.gap_s:.0f} ms without any" if done.gap_s else ""


def _brought(done: "Switched") -> str:
    """Return a sentence about the writes that were brought, and one about those that were not, each after a space."""
    written, removed, kept = done.carried.written, done.carried.removed, done.carried.kept
    found = f" Brought: {counted(written, 'row')} that programs wrote meanwhile, {removed} that they deleted."
    left = f" Changed on both sides, and left as each side has it: {counted(kept, 'row')}. Compare them."
    return (found if written or removed else "") + (left if kept else "")


def _copied(shown: dict[str, Any], sampled: int) -> str:
    lost = shown["without_text_count"]
    cut = f", {shown['truncated']:,} of which are longer than the model reads" if shown["truncated"] else ""
    check = f"{sampled} of the new vectors were made again to check: all are the same."
    found = f"{counted(shown['rows'], 'row')}, {counted(shown['embedded'], 'text')} embedded{cut}. {check}"
    if lost:
        ids = ", ".join([*shown["without_text"], *(["…"] if lost > len(shown["without_text"]) else [])])
        found += f" Without a text, and last in searches: {counted(lost, 'row')}: {ids}."
    return found


def _confirmed(line: str) -> bool:
    """Return True if a person at the terminal confirms that the application changes, too."""
    if not sys.stdin.isatty():
        return False
    return typer.confirm(printable(f"The application needs this line from now on:\n  {line}\nSwitch now?"), err=True)


def _embedder(
    move: "Reembedding", model: str | None, context: Path | None, base_url: str | None, prefixes: dict[str, str] | None
) -> "Embedder":
    """Return the embedder of the move that was begun, or that the options name."""
    from cde_rag import ContextualEmbedder
    from cde_rag.cli.foreign import embedder_of, plain_embedder
    from cde_rag.models.named import named_model

    if base_url is not None:
        from cde_rag.embedders.openai_api import openai_embedder

        if model is None or context is not None:
            raise typer.BadParameter("name the model that the API serves, without a context", param_hint="--model")
        return move.embedder(openai_embedder(model, base_url=base_url, prefixes=prefixes))
    if context is not None:
        return move.embedder(embedder_of(model, context, prefixes))
    if move.state is not None:
        return move.embedder(None) if model is None else _of_begun(move, model, prefixes)
    if model is None:
        raise typer.BadParameter("name the new model", param_hint="--model")
    named = named_model(model, prefixes=prefixes)
    if named.identity.is_plain:
        return plain_embedder(named)
    texts = (row.text for page in move.source.rows({}, old=True) for row in page if row.text is not None)
    return ContextualEmbedder.from_corpus(texts, model=named)


def _of_begun(move: "Reembedding", model: str, prefixes: dict[str, str] | None) -> "Embedder":
    """Return the embedder of a move that was begun, if a model is that of the move."""
    from cde_rag import ContextualEmbedder
    from cde_rag.cli.foreign import embedder_of
    from cde_rag.errors import ContextMissingError

    try:
        return move.embedder(embedder_of(model, None, prefixes))
    except ContextMissingError:  # a contextual model: in the Context of the first run
        state = move.state
        assert state is not None
        return ContextualEmbedder(model, move.journal.context(state))


def _old(model: str | None, context: Path | None) -> "Embedder | None":
    from cde_rag.cli.foreign import embedder_of

    return None if model is None and context is None else embedder_of(model, context, None)


def _unread(plan: "MovePlan") -> str:
    found = plan.unread
    if not found.limit:
        return "none, or unknown where an API serves the model"
    return f"{found.share:.1%} of the tokens, in {found.texts} of {found.of} texts"


def _print_plan(plan: "MovePlan", line: str, as_json: bool) -> None:
    if as_json:
        print_json(
            asdict(plan)
            | {"loses": plan.loses, "advises_against": plan.advises_against, "advice": plan.advice, "line": line}
        )
        return
    audited, before, after = plan.audit, plan.before, plan.after
    print_fields(
        {
            "rows": f"{plan.rows:,}, of which {plan.without_text_count:,} without a text",
            "without_text": plan.without_text,
            "vectors": f"{plan.dim[0]} numbers now, {plan.dim[1]} then; distance {plan.distance}",
            "configured_model": plan.configured,
            "old_model": None if audited is None else f"made {audited.reproduced} of {audited.sampled}",
            "new_model": plan.model,
            "tokens": f"about {plan.tokens:,}",
            "unread": _unread(plan),
            "time": f"about {clock(plan.seconds)}",
            "disk": f"about {plan.disk_bytes / 1e6:,.1f} MB",
            "queries": f"{plan.judged} judged" if plan.judged else "generated",
            "ndcg@10": f"{'–' if before is None else f'{before:.3f}'} → {after:.3f}",
            "advice": plan.advice,
            "line_to_change": line,
        }
    )
