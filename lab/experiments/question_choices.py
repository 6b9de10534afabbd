"""Pairs and hard negatives of `question_training` by their ids, without texts of others: an hour of embedding.

    python -m lab.experiments.question_choices write runs/questions lab/tables/question-choices.jsonl.gz
    python -m lab.experiments.question_choices restore runs/questions lab/tables/question-choices.jsonl.gz

A restored folder of results goes on where the first three steps of the plan end. JSON Lines: one of the old pairs
(digests of query and document), then one for each corpus, with the pairs left out (question and passage) and, for each
question, the numbers of its hard negatives and of passages that may answer among the passages chosen, as differences.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cde_rag._files import write_durably
from cde_rag.evaluation.answer_scores import judged
from cde_rag.evaluation.question_folder import TRAIN, read_corpora
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.reading import PairReader
from cde_rag_training.questions.question_pairs import REPORT, build_pairs, write_lines, write_pairs
from lab.experiments import bundled_pairs
from lab.experiments.question_training import TrainingPlan, read_plan, rows_of_file

DIGITS: Final = 16  # hexadecimal, of a digest


def write(work: Path, plan: TrainingPlan, path: Path) -> None:
    """Write the choices of a run whose negatives are there.

    Args:
        work: Folder of its results.
        plan: The plan.
        path: The file.
    """
    kept = {(row["domain"], row["id"], row["passage"]) for row in rows_of_file(work / f"pairs/{TRAIN}.jsonl.gz")}
    lines: list[Mapping[str, Any]] = [{"old": [_digest(pair) for pair in PairReader(work / "old.jsonl")]}]
    for corpus in read_corpora(plan.data / plan.config.questions, plan.chosen()):
        name = corpus.site.name
        rows = list(rows_of_file(work / f"negatives/{name}.jsonl.gz"))
        numbers = {row["id"]: number for number, row in enumerate(row for row in rows if "id" in row)}
        built = [(pair.id, pair.passage) for pair in build_pairs(corpus).pairs]
        lines.append(
            {
                "corpus": name,
                "passages": len(numbers),
                "left_out": [pair for pair in built if (name, *pair) not in kept],
                "negatives": [
                    [
                        row["question"],
                        *([numbers[each] for each in row[side]] for side in ("negatives", "unmarked")),
                        row["above"],
                    ]
                    for row in rows
                    if "question" in row
                ],
            }
        )
    write_lines(path, lines)


def restore(work: Path, plan: TrainingPlan, path: Path) -> None:
    """Write pairs, old pairs and negatives into a folder of results, as the run had them.

    Args:
        work: The folder; what is there is written anew.
        plan: The plan, with the data of the run.
        path: The choices.

    Raises:
        KeyError: An old pair of the run is not in the data.
        ValueError: The corpora are cut into other passages than in the run.
    """
    first, *corpora = rows_of_file(path)
    chosen = {row["corpus"]: row for row in corpora}
    folder = work / "pairs"
    write_pairs(read_corpora(plan.data / plan.config.questions, plan.chosen(evaluated=True)), folder)
    left_out = {(name, *pair) for name, row in chosen.items() for pair in row["left_out"]}
    rows = list(rows_of_file(folder / f"{TRAIN}.jsonl.gz"))
    write_lines(
        folder / f"{TRAIN}.jsonl.gz",
        (row for row in rows if (row["domain"], row["id"], row["passage"]) not in left_out),
    )
    report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
    write_durably(folder / REPORT, json.dumps(report | {"left_out": len(left_out)}, indent=1).encode())
    found = {_digest(pair): pair for pair in bundled_pairs.pairs_beside_questions(plan.data)}
    bundled_pairs.write_pairs((found[digest] for digest in first["old"]), work / "old.jsonl")
    (work / "negatives").mkdir(exist_ok=True)
    for corpus in read_corpora(plan.data / plan.config.questions, list(chosen)):
        row = chosen[corpus.site.name]
        data = judged(corpus).part(plan.config.passages, near=2)
        if len(data.passages) != row["passages"]:
            raise ValueError(
                f"{corpus.site.name}: expected {row['passages']} passages, found {len(data.passages)}. Are pages, "
                "questions and the number of passages those of the run?"
            )
        texts: list[Mapping[str, Any]] = [
            {"id": each.id, "page": each.page, "text": each.text, "embedded": each.embedded} for each in data.passages
        ]
        texts += [
            {
                "question": question,
                "negatives": [data.ids[number] for number in negatives],
                "unmarked": [data.ids[number] for number in unmarked],
                "above": above,
            }
            for question, negatives, unmarked, above in row["negatives"]
        ]
        write_lines(work / f"negatives/{corpus.site.name}.jsonl.gz", texts)


def _digest(pair: Pair) -> str:
    return hashlib.sha256(
        "\0".join([pair.source, pair.domain, pair.parent or "", pair.query, pair.document]).encode()
    ).hexdigest()[:DIGITS]


def main() -> None:
    """Write the choices of a run, or restore them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("write", "restore"))
    parser.add_argument("work", type=Path, help="folder of results")
    parser.add_argument("choices", type=Path, help="the file, a .jsonl.gz")
    parser.add_argument("--plan", type=Path, default=Path("lab/plans/user-questions.toml"), help="TOML of the plan")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the data")
    given = parser.parse_args()
    config, variants = read_plan(given.plan)
    plan = TrainingPlan(config, variants, given.data, given.work, given.plan.parent, [])
    (write if given.step == "write" else restore)(given.work, plan, given.choices)


if __name__ == "__main__":
    main()
