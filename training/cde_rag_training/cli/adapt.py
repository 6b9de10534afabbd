"""The command adapt."""

import csv
import json
import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from cde_rag.cli.output import INTERRUPTED, JsonOption, ProgressOption, one_line, print_json, printable
from cde_rag.cli.serve import LLM_KEY_VARIABLE
from cde_rag.errors import counted
from cde_rag_training.cli.recipes import ConfigOption, PresetOption, chosen_recipe, tell_skipped

if TYPE_CHECKING:
    from cde_rag.evaluation.own_questions import OwnCorpus, OwnQuestions
    from cde_rag.readers import RecordReader
    from cde_rag_training.adapt.adaptation import Adaptation
    from cde_rag_training.adapt.corpus_pairs import PairReport
    from cde_rag_training.adapt.question_adaptation import QuestionAdaptationConfig
    from cde_rag_training.adapt.question_material import QuestionMaterial
    from cde_rag_training.config import TrainingConfig
    from cde_rag_training.questions.question_writing import WritingConfig

NOT_BETTER = 3  # exit code: done, and the model that was there is to be kept
WIDTH = 110  # characters of a line of text
QUESTIONS = "questions.jsonl"  # in the output folder: those that a language model wrote
JOURNAL = "written.jsonl"  # of them, by section
MINUTES, RECORDS = 10.0, 8_000  # without questions


def adapt(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE", help="Files or folders of documents, as for cde-rag index.")
    ],
    output: Annotated[Path, typer.Option("--output", metavar="FOLDER", help="Folder for the adapted model.")],
    questions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your questions: lines with question and answers (page and quote, or id), a file saved from the "
            "page of cde-rag serve, a folder in BEIR's layout, or lines with query and id (or document).",
        ),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Let the language model at this OpenAI-compatible address write the questions. It is sent sections of "
            f"your documents. Its key is the environment's {LLM_KEY_VARIABLE}.",
        ),
    ] = None,
    llm_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Model at that address.  [default: the first one it lists]")
    ] = None,
    llm_questions: Annotated[int, typer.Option(min=1, help="Questions that it writes, three of a section.")] = 300,
    queries: Annotated[Path | None, typer.Option(hidden=True)] = None,  # before --questions; goes in 1.0
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Time limit, comparison included; with questions, of the training alone.  [default: 10; with "
            "questions none, some minutes for some hundred]",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Start model: a bundled name, a folder, or, without questions, minilm.")
    ] = "cde-mini",
    parent_key: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that names the longer document. [default: for text files the file]"),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip unusable records.")] = False,
    id_field: Annotated[str | None, typer.Option(metavar="FIELD", help="[default: id, else _id]")] = None,
    text_field: Annotated[str, typer.Option(metavar="FIELD")] = "text",
    title_field: Annotated[str, typer.Option(metavar="FIELD")] = "title",
    max_characters: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum length of a passage of text files. [default: as in new collections]"),
    ] = None,
    code: Annotated[
        bool | None,
        typer.Option("--code/--no-code", help="Read the source code in folders. [default: if most texts are code]"),
    ] = None,
    max_records: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sample larger corpora down to this size.  [default: 8000; with questions 1000, besides those that "
            "answer]",
        ),
    ] = None,
    config: ConfigOption = None,
    preset: PresetOption = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the training data, or the requests to the language model, and stop.")
    ] = False,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adapt a model to your own documents, and measure the gain in retrieval.

    Best with questions about them: some two hundred of your own (--questions), or written by a language model (--llm)
    and kept in FOLDER/questions.jsonl, where you can read and mend them, and give them back by --questions. Pages are
    divided: a third of the questions tests the result, on pages that are in no part of the training.

    Without questions, training queries are generated from the documents: titles, headings, first sentences and
    keywords. They differ from your users' questions.

    A recipe (--config, --preset) changes losses, batches, filters and rates; model, data and time stay as here, and
    its phases with data of their own are left out.

    The adapted model is compared with the start model and BM25. Exit code 0: surely better, and FOLDER is the model.
    3: not better, keep the start model; the adapted one is in FOLDER/not-better. No collection is changed. To resume an
    interrupted command, run it again.

    \b
    Examples:
      cde-rag-train adapt docs/ --output my-model \\
        --questions docs-judged.zip
      cde-rag-train adapt docs/ --output my-model \\
        --llm http://localhost:11434/v1 --llm-model qwen3:8b
      cde-rag-train adapt corpus.jsonl --output my-model \\
        --parent-key page --dry-run
      cde-rag index docs/ docs.faiss --model my-model
    """
    from cde_rag.readers import Fields, RecordReader
    from cde_rag.readers.reading_rules import NEWEST

    questions = questions or queries
    if questions is not None and llm is not None:
        raise typer.BadParameter("give --questions or --llm, not both", param_hint="--llm")
    recipe = None if config is None and preset is None else chosen_recipe(config, preset)
    if llm_model is not None and llm is None:
        raise typer.BadParameter("it names a model of an address: give --llm, too", param_hint="--llm-model")
    csv.field_size_limit(sys.maxsize)
    fields = Fields(id=id_field, text=text_field, title=title_field, parent=parent_key)
    reading = NEWEST.with_changes({"characters": max_characters, "code": code})
    reader = RecordReader(*sources, fields=fields, skip_bad=skip_bad, reading=reading)
    shown = sys.stderr.isatty() if progress is None else progress
    with _resumable(output):
        if questions is None and llm is None:
            done = _by_documents(
                reader,
                output,
                name=", ".join(sources),
                model=model,
                minutes=MINUTES if minutes is None else minutes,
                records=max_records or RECORDS,
                recipe=recipe,
                seed=seed,
                dry_run=dry_run,
                progress=shown,
                as_json=as_json,
            )
        else:
            from cde_rag_training.adapt.question_adaptation import QuestionAdaptationConfig
            from cde_rag_training.questions.question_writing import WritingConfig

            settings = QuestionAdaptationConfig(model=model, minutes=minutes or 0.0, recipe=recipe, seed=seed)
            settings = settings if max_records is None else replace(settings, passages=max_records)
            done = _by_questions(
                reader,
                questions or _Writer(str(llm), llm_model, WritingConfig(questions=llm_questions, seed=seed)),
                settings,
                output,
                name=", ".join(sources),
                dry_run=dry_run,
                progress=shown,
                as_json=as_json,
            )
    if done is None:
        return
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(str(done))
        typer.echo(f"The model is in {done.model}" + ("." if done.comparison.better else ", to look at."))
    if not done.comparison.better:
        raise typer.Exit(NOT_BETTER)


class _Writer(NamedTuple):
    """A language model that writes the questions."""

    url: str
    model: str | None
    config: "WritingConfig"


@contextmanager
def _resumable(output: Path) -> Generator[None, None, None]:
    """Print on Ctrl-C that the same command resumes."""
    try:
        yield
    except KeyboardInterrupt as error:
        typer.echo(f"Stopped; {output} keeps the finished steps. Run the same command again to continue.", err=True)
        raise typer.Exit(INTERRUPTED) from error


def _say(line: str) -> None:
    typer.echo(f"{line} …", err=True)


def _by_documents(
    reader: "RecordReader",
    output: Path,
    *,
    name: str,
    model: str,
    minutes: float,
    records: int,
    recipe: "TrainingConfig | None",
    seed: int,
    dry_run: bool,
    progress: bool,
    as_json: bool,
) -> "Adaptation | None":
    """Adapt by queries made of the documents; None after a dry run."""
    from cde_rag_training.adapt.material import MaterialConfig, material

    found = material(reader, MaterialConfig(records=records, seed=seed), parent_key=reader.fields.parent, name=name)
    tell_skipped(reader.skipped, reader.reports)
    _tell_pairs(found.pairs)
    if dry_run:
        if as_json:
            print_json(asdict(found.pairs))
        return None
    from cde_rag_training.adapt.adaptation import AdaptationConfig
    from cde_rag_training.adapt.adaptation import adapt as run

    config = AdaptationConfig(model=model, minutes=minutes, recipe=recipe, seed=seed)
    return run(found, config, output, progress=progress, say=_say)


def _by_questions(
    reader: "RecordReader",
    source: "Path | _Writer",
    config: "QuestionAdaptationConfig",
    output: Path,
    *,
    name: str,
    dry_run: bool,
    progress: bool,
    as_json: bool,
) -> "Adaptation | None":
    """Adapt by questions of a file, or by those that a language model writes; None after a dry run."""
    from cde_rag.evaluation.own_questions import OwnCorpus, read_own_questions
    from cde_rag_training.adapt.question_adaptation import adapt_to_questions, adaptation_plan
    from cde_rag_training.adapt.question_material import question_material, rehearsal_pairs

    parent_key = reader.fields.parent
    corpus = OwnCorpus.of(reader, parent_key=parent_key)
    tell_skipped(reader.skipped, reader.reports)
    texts = [passage.embedded for passage in corpus.passages]
    if isinstance(source, _Writer):
        plan = adaptation_plan(config, texts, {"model": source.model, "questions": source.config.questions})
        if dry_run:
            _tell_sections(corpus, source, as_json=as_json)
            return None
        given = _written(corpus, source, output, plan, name=name, progress=progress)
    else:
        given = read_own_questions(source, corpus, name=name)
        asked = [
            [each.text, *sorted(right)] for each, right in zip(given.data.questions, given.data.answers, strict=True)
        ]
        plan = adaptation_plan(config, texts, {"file": asked})
    found = question_material(given, seed=config.seed, passages=config.passages)
    _tell_questions(found)
    if dry_run:
        if as_json:
            print_json({"questions": found.counts, "dropped": found.dropped})
        return None
    rehearsed = rehearsal_pairs(found, corpus, parent_key=parent_key, seed=config.seed)
    return adapt_to_questions(found, rehearsed, config, output, plan=plan, progress=progress, say=_say)


def _written(
    corpus: "OwnCorpus", writer: _Writer, output: Path, plan: Mapping[str, Any], *, name: str, progress: bool
) -> "OwnQuestions":
    """Let the language model write the missing questions, and keep them in the output folder."""
    from tqdm import tqdm

    from cde_rag._files import write_durably
    from cde_rag.evaluation.own_questions import find_answers
    from cde_rag_training.adapt.output_folder import claimed
    from cde_rag_training.questions.question_writing import (
        Written,
        as_row,
        page_sections,
        remote_answers,
        write_questions,
    )

    ask = remote_answers(writer.url, writer.model, os.environ.get(LLM_KEY_VARIABLE))
    journal = claimed(output, plan) / JOURNAL
    wanted = counted(writer.config.questions, "question")
    _say(f"{writer.model or 'The language model'} at {writer.url} writes {wanted}")
    with tqdm(total=writer.config.questions, desc="questions", unit="", disable=not progress) as bar:

        def update(written: Written) -> None:
            bar.set_postfix_str(f"{written.refused.total()} refused", refresh=False)
            bar.update(min(len(written.questions), writer.config.questions) - bar.n)

        sections = page_sections(corpus.passages, writer.config)
        written = write_questions(ask, sections, journal, writer.config, on_progress=update)
    lines = "".join(f"{json.dumps(as_row(each), ensure_ascii=False)}\n" for each in written.questions)
    write_durably(output / QUESTIONS, lines.encode())
    about = counted(written.sections, "section")
    _say(f"{output / QUESTIONS}: {counted(len(written.questions), 'question')} about {about}")
    for reason, count in written.refused.most_common():
        typer.echo(f"  refused: {count:,} × {reason}", err=True)
    return find_answers(written.questions, corpus, name=name)


def _tell_sections(corpus: "OwnCorpus", writer: _Writer, *, as_json: bool) -> None:
    """Print the size of the requests to a language model, and the first one, without sending any."""
    from cde_rag_training.questions.question_writing import page_sections, prompt_of

    sections = page_sections(corpus.passages, writer.config)
    calls = -(-writer.config.questions // writer.config.of_section)
    asked = sections[:calls]
    pages = len({each.page for each in asked})
    characters = sum(
        len(each["content"]) for place, one in enumerate(asked) for each in prompt_of(one, place, writer.config)
    )
    if as_json:
        print_json({"sections": len(asked), "of": len(sections), "pages": pages, "characters": characters})
        return
    typer.echo(
        f"{len(asked):,} of {counted(len(sections), 'section')}, of {counted(pages, 'page')}, would be sent to "
        f"{writer.url} in as many requests: {characters:,} characters, prompts included. Nothing was sent. The first "
        "one:"
    )
    for message in prompt_of(sections[0], 0, writer.config)[1:]:
        typer.echo(printable(message["content"]))


def _tell_questions(found: "QuestionMaterial") -> None:
    """Print the number of questions in each part, and of those in none, to stderr."""
    counts = ", ".join(f"{count:,} for {part}" for part, count in found.counts.items())
    typer.echo(f"Questions: {counts}; no page answers in two parts", err=True)
    for reason, count in found.dropped.items():
        typer.echo(f"  left out: {count:,} × {reason}", err=True)


def _tell_pairs(pairs: "PairReport") -> None:
    """Print statistics and examples of the pairs to stderr."""
    made = ", ".join(f"{count:,} by {kind}" for kind, count in pairs.made.items())
    typer.echo(f"Pairs: {made}", err=True)
    for reason, count in pairs.dropped.items():
        typer.echo(f"  no pair: {count:,} × {reason}", err=True)
    for one in pairs.examples:
        text = one_line(one.text, max(20, WIDTH - len(one.query)))
        typer.echo(f"  {one.kind:<8}  {printable(' '.join(one.query.split()))} → {text}", err=True)
