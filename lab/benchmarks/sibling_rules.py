"""NDCG@10 of sibling rules 1 and 2 on sites of documentation, each section asked for by page and heading.

Run with: python lab/benchmarks/sibling_rules.py PAIRS.jsonl [--model cde-mini] [--json], where PAIRS.jsonl is what
`python -m lab.experiments.documentation_pairs` writes: its second file holds the ten sites that no model was trained
on (lab/pages/training-data.md says how to get them).
"""

import argparse
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from cde_rag import ContextualEmbedder
from cde_rag.context.siblings import SIBLINGS
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.metrics import ndcg
from cde_rag.evaluation.ranking import rank_vectors


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--model", default="cde-mini")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    sites: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for line in options.pairs.read_text(encoding="utf-8").splitlines():
        pair = json.loads(line)
        sites[pair["domain"]].append(pair)
    rows, paired = [], []
    for site, pairs in sorted(sites.items()):
        row, differences = compared(site, pairs, options.model)
        rows.append(row)
        paired.append(PairedQueries(differences, np.arange(len(pairs))))
        if not options.json:
            print(f"{site:28}" + "".join(f"{key} {row[key]:6.1f}   " for key in ("none", "rule_1", "rule_2", "long")))
    found = compare(paired)
    if options.json:
        print(
            json.dumps({"sites": rows, "rule_2_minus_rule_1": found.mean, "queries": found.queries, "sets": found.sets})
        )
    else:
        percent = [100 * value for value in (found.mean, *found.queries, *(found.sets or ()))]
        print("rule 2 minus rule 1: {:+.2f} ({:+.2f} … {:+.2f}; sets drawn again {:+.2f} … {:+.2f})".format(*percent))


def compared(site: str, pairs: list[dict[str, str]], model: str) -> tuple[dict[str, float], np.ndarray]:
    """One site: its figures × 100, and rule 2 minus rule 1 for each query."""
    texts, parents = [pair["document"] for pair in pairs], [pair["parent"] for pair in pairs]
    ids = [f"d{number}" for number in range(len(pairs))]
    asked = [f"q{number}" for number in range(len(pairs))]
    newest = ContextualEmbedder.from_corpus(texts, model=model)
    first = newest.with_context(
        replace(newest.context, manifest=replace(newest.context.manifest, format=1, sibling_rule=1))
    )
    queries = newest.embed_queries([pair["query"] for pair in pairs])
    scores = {
        name: np.array(
            [
                ndcg(ranking, {right: 1}, 10)
                for ranking, right in zip(rank_vectors(queries, vectors, ids, asked), ids, strict=True)
            ]
        )
        for name, vectors in (
            ("none", newest.embed_documents(texts)),
            ("rule_1", first.embed_documents(texts, parents=parents)),
            ("rule_2", newest.embed_documents(texts, parents=parents)),
        )
    }
    long = np.mean([parents.count(parent) > SIBLINGS + 1 for parent in parents])
    figures = {name: 100 * float(values.mean()) for name, values in scores.items()}
    return {"site": site, "documents": len(pairs), **figures, "long": 100 * float(long)}, scores["rule_2"] - scores[
        "rule_1"
    ]


if __name__ == "__main__":
    main()
