"""Answers that nobody noted: passages above the marked ones, for readers, and scores with and without them.

    python -m lab.experiments.further_answers pool FOLDER… --work runs/further
    python -m lab.experiments.further_answers scores FOLDER… --work runs/further --judged FILE.jsonl.gz

`pool` writes `candidates.jsonl.gz` for readers: a line for each question, with passages in an order of digests, the
marked ones among them so that the readers can be judged, too. FILE has a line for each question that was read:
`corpus`, `question`, `read` (number of passages), `marked` (verdict on the marked one: yes, partly, no; none where
there is none), and `answers` and `partly`, ids of other passages. `scores` prints the counts of it.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from cde_rag.evaluation.answer_scores import JudgedPassages, K, answer_difference, answer_scores, mean_score, parts_of
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.ranking import Ranking, rank_hybrid, rank_vectors
from cde_rag_training.clustering.surrogate import cached, minilm
from cde_rag_training.questions.question_pairs import write_lines
from lab.experiments.question_scores import System, read_judged, system_rankings
from lab.experiments.question_training import rows_of_file
from lab.experiments.result_tables import write_table

MODELS: Final = ("cde-mini-1", "cde-mini-2")
MINILM: Final = "MiniLM"
WORDS: Final = "BM25"


class FurtherRow(NamedTuple):
    """Scores of one system by the marked answers, and by these and the further ones.

    Attributes:
        system: Model and ranking.
        marked: MRR@10 of marked answers, mean over corpora.
        further: MRR@10 of all answers.
        gain: Difference to MiniLM by vectors, of all answers.
        low: Lower end of its 95 % interval over questions.
        high: Upper end.
        gain_marked: Difference to MiniLM by vectors, of marked answers.
    """

    system: str
    marked: float
    further: float
    gain: float
    low: float
    high: float
    gain_marked: float


def all_rankings(corpora: Sequence[JudgedPassages], cache: Path) -> dict[str, list[list[Ranking]]]:
    """Return the rankings of each system: of each corpus, of each question.

    Args:
        corpora: Passages and questions.
        cache: Folder of vectors, by which a stopped call resumes.
    """
    found: dict[str, list[list[Ranking]]] = {}
    embed = cached(lambda texts: minilm()(texts), "minilm-256", cache)
    for data in corpora:
        names = data.ids, [f"question {question.id}" for question in data.questions]
        queries, documents = embed(data.queries), embed(data.texts)
        words = word_hits(data.texts, data.queries)
        found.setdefault(WORDS, []).append([[data.ids[int(place)] for place, _ in each] for each in words])
        found.setdefault(MINILM, []).append(rank_vectors(queries, documents, *names))
        found.setdefault(f"{MINILM}, hybrid", []).append(rank_hybrid(queries, documents, words, *names))
    for model in MODELS:
        for rankings in system_rankings(System(model, model, "own"), corpora, cache, seed=0, runtime="openvino"):
            found.setdefault(model, []).append(rankings["vectors"])
            found.setdefault(f"{model}, hybrid", []).append(rankings["hybrid"])
    return found


def above(rankings: Sequence[Ranking], right: frozenset[str], depth: int) -> list[str]:
    """Return the passages that stand above the first marked one in any ranking, among its first `depth`.

    Args:
        rankings: Of one question by each system.
        right: Ids of the marked passages.
        depth: Passages of each ranking that are looked at.
    """
    found: dict[str, None] = {}
    for ranking in rankings:
        for each in ranking[:depth]:
            if each in right:
                break
            found[each] = None
    return list(found)


def candidates(
    corpora: Sequence[JudgedPassages], rankings: Mapping[str, list[list[Ranking]]], *, depth: int = K
) -> list[dict[str, Any]]:
    """Return a line for each question that has passages to be read: these and a marked one, by digest.

    Args:
        corpora: Passages and questions.
        rankings: Of each system, of each corpus.
        depth: Passages of each ranking that are looked at.
    """
    lines: list[dict[str, Any]] = []
    for at, data in enumerate(corpora):
        passages = {passage.id: passage for passage in data.passages}
        for place, (question, right) in enumerate(zip(data.questions, data.answers, strict=True)):
            found = above([each[at][place] for each in rankings.values()], right, depth)
            if not found:
                continue
            shown = sorted({*found, *sorted(right)[:1]}, key=lambda each: _digest(question.id, each))
            lines.append(
                {
                    "corpus": data.site.name,
                    "question": question.id,
                    "text": question.text,
                    "passages": [{"id": each, "text": passages[each].embedded} for each in shown],
                }
            )
    return lines


def with_further(data: JudgedPassages, further: Mapping[str, frozenset[str]]) -> JudgedPassages:
    """Return a corpus whose answers have further ones.

    Args:
        data: Passages and questions.
        further: Ids of passages by id of the question.
    """
    pairs = zip(data.questions, data.answers, strict=True)
    return replace(data, answers=tuple(right | further.get(question.id, frozenset()) for question, right in pairs))


def further_rows(
    corpora: Sequence[JudgedPassages],
    rankings: Mapping[str, list[list[Ranking]]],
    further: Mapping[str, Mapping[str, frozenset[str]]],
) -> list[FurtherRow]:
    """Score each system by the marked answers, and by all.

    Args:
        corpora: Passages and questions.
        rankings: Of each system, of each corpus.
        further: Ids of passages by corpus and question.
    """
    complete = [with_further(data, further.get(data.site.name, {})) for data in corpora]
    every = parts_of(corpora)["all"]

    def scores(given: Sequence[JudgedPassages], system: str) -> list[Any]:
        return [answer_scores(data, found).answers for data, found in zip(given, rankings[system], strict=True)]

    bases = scores(corpora, MINILM), scores(complete, MINILM)
    rows: list[FurtherRow] = []
    for system in rankings:
        marked, all_ = scores(corpora, system), scores(complete, system)
        gain = answer_difference(complete, all_, bases[1], every)
        rows.append(
            FurtherRow(
                system=system,
                marked=mean_score(marked, every),
                further=mean_score(all_, every),
                gain=gain.mean,
                low=min((gain.sets or gain.queries)[0], gain.queries[0]),
                high=max((gain.sets or gain.queries)[1], gain.queries[1]),
                gain_marked=answer_difference(corpora, marked, bases[0], every).mean,
            )
        )
    return rows


def counts(rows: Sequence[Mapping[str, Any]]) -> str:
    """Count the readers' verdicts, of marked passages and of others, and the questions with further answers."""
    marked = Counter(row["marked"] for row in rows)
    others = sum(row["read"] for row in rows) - sum(marked.values()) + marked["none"]
    answers, partly = (sum(len(row[each]) for row in rows) for each in ("answers", "partly"))
    return (
        f"{sum(marked.values()) - marked['none']} marked: {marked['yes']} answer, {marked['partly']} partly\n"
        f"{others} others: {answers} answer, {partly} partly\n"
        f"{len(rows)} questions: {sum(bool(row['answers']) for row in rows)} with further answers"
    )


def _digest(question: str, passage: str) -> bytes:
    return hashlib.sha256(f"{question} {passage}".encode()).digest()


def main() -> None:
    """Write candidates for readers, or scores by the answers that they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("pool", "scores"))
    parser.add_argument("folders", nargs="+", type=Path, help="folders of questions; of splits, dev is taken")
    parser.add_argument("--work", type=Path, required=True, help="folder of vectors and results")
    parser.add_argument("--judged", type=Path, help="passages that the readers found to answer")
    parser.add_argument("--passages", type=int, default=450, help="of a corpus, about; 0: all")
    parser.add_argument("--depth", type=int, default=K, help="passages of each ranking that are looked at")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    corpora = read_judged(asked.folders, split="dev", passages=asked.passages)
    rankings = all_rankings(corpora, asked.work)
    if asked.step == "pool":
        lines = candidates(corpora, rankings, depth=asked.depth)
        path = asked.work / "candidates.jsonl.gz"
        write_lines(path, lines)
        print(f"{path}: {len(lines)} questions, {sum(len(line['passages']) for line in lines)} passages")
        return
    found = rows_of_file(asked.judged)
    print(counts(found))
    further: dict[str, dict[str, frozenset[str]]] = {}
    for row in found:
        further.setdefault(row["corpus"], {})[row["question"]] = frozenset(row["answers"])
    write_table(asked.work / "further-answers.csv", further_rows(corpora, rankings, further))
    print((asked.work / "further-answers.csv").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
