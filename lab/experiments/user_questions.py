"""Questions as users put them: their published form, and scores of models on them.

python -m lab.experiments.user_questions publish FOLDER questions.jsonl.gz
python -m lab.experiments.user_questions score FOLDER… --split dev --model cde-mini-1 --model new=runs/a/model
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from cde_rag.evaluation.question_folder import QuestionCorpus, read_corpora
from cde_rag.models.runtimes.runtime_choice import RUNTIMES
from cde_rag_training.questions.published_questions import publish
from lab.experiments.question_scores import CONTEXTS, ScoreRow, System, read_judged, score_rows
from lab.experiments.result_tables import write_table

README = "README.md"


def with_origin(corpus: QuestionCorpus, readme: Path) -> QuestionCorpus:
    """Return a corpus with its origin as its README states it: lines such as "Repository: …", "Commit: …", "Prefix: …".

    A corpus of packages has their names and versions in place of repository and commit.

    Args:
        corpus: Pages and questions.
        readme: The file; without one the corpus stays as it is.
    """
    if not readme.is_file():
        return corpus
    lines = (line.partition(":") for line in readme.read_text(encoding="utf-8").splitlines())
    facts = {name.strip().lower(): value.strip() for name, _, value in lines}
    source = next((facts[name] for name in ("repository", "packages", "source") if name in facts), corpus.site.source)
    pages = f"; pages: {facts['prefix']}" if "prefix" in facts else ""
    return replace(corpus, site=replace(corpus.site, source=f"{source}{pages}"))


def systems_of(models: list[str], contexts: list[str]) -> list[System]:
    """Return the systems of models, each under each context; a model may be written as name=folder."""
    named = [given.partition("=") for given in models]
    return [System(name, folder or name, context) for name, _, folder in named for context in contexts]


def shown(row: ScoreRow) -> str:
    """Return a line of a table; figures times 100."""
    figures = " ".join(f"{100 * value:+6.1f}" for value in (row.gain, row.low, row.high))
    corpora = f"{100 * row.corpora_low:+6.1f} {100 * row.corpora_high:+6.1f}"
    return (
        f"{row.part:24} {row.system:20} {row.context:5} {row.by:8} {row.questions:6} "
        f"{100 * row.answers:6.1f} {100 * row.pages:6.1f}  {figures}  {corpora}"
    )


HEAD = (
    f"{'part':24} {'model':20} {'cont.':5} {'by':8} {'quest.':>6} {'answer':>6} {'page':>6}  "
    f"{'gain':>6} {'low':>6} {'high':>6}  over corpora"
)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    publishing = commands.add_parser("publish", help="write questions without texts and quotes of their pages")
    publishing.add_argument("folder", type=Path, help="folder of questions, as for cde-rag-train questions")
    publishing.add_argument("output", type=Path, help="file, such as questions.jsonl.gz")
    scoring = commands.add_parser("score", help="score models; gains are over the first model and context")
    scoring.add_argument("folders", type=Path, nargs="+", help="folders of questions")
    scoring.add_argument("--model", action="append", required=True, help="name, or name=folder; repeatable")
    scoring.add_argument("--context", action="append", choices=CONTEXTS, help="own (default) or null; repeatable")
    scoring.add_argument("--split", default="", help="corpora of this split only, such as dev")
    scoring.add_argument("--passages", type=int, default=0, help="about so many passages of a corpus; 0: all")
    scoring.add_argument("--runtime", choices=RUNTIMES, default="torch", help="runtime of the models")
    scoring.add_argument("--cache", type=Path, default=Path("vectors"), help="folder of vectors, to resume")
    scoring.add_argument("--output", type=Path, help="CSV of all rows")
    scoring.add_argument("--json", action="store_true", help="print the rows as JSON")
    arguments = parser.parse_args()
    if arguments.command == "publish":
        folder: Path = arguments.folder
        publish((with_origin(one, folder / one.site.name / README) for one in read_corpora(folder)), arguments.output)
        sys.stdout.write(f"{arguments.output}: {arguments.output.stat().st_size:,} bytes\n")
        return
    corpora = read_judged(arguments.folders, split=arguments.split, passages=arguments.passages)
    systems = systems_of(arguments.model, arguments.context or ["own"])
    rows = score_rows(systems, corpora, arguments.cache, runtime=arguments.runtime)
    if arguments.output is not None:
        write_table(arguments.output, rows)
    lines = [json.dumps([row._asdict() for row in rows], indent=1)] if arguments.json else [HEAD, *map(shown, rows)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
