"""Ways to give each corpus, or each query, its own share of words in hybrid search, beside the one that is shipped.

The plan is in lab/pages/fusion.md. Run with: python -m lab.benchmarks.fusion_candidates SETS.toml --data FOLDER
--vectors FOLDER [--output FILE.csv]. The folder of vectors is that of lab.benchmarks.fusion.
"""

import argparse
import csv
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64

from cde_rag import ContextualEmbedder
from cde_rag.context.siblings import SIBLINGS, sibling_positions
from cde_rag.errors import TruncationWarning
from cde_rag.evaluation.beir import RetrievalSet
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.search.fusion import CANDIDATES, CONSTANT
from cde_rag.stores.text_analysis import IDENTIFIERS, PORTER
from cde_rag_training.data.retrieval_sets import SetsConfig, read_sets
from cde_rag_training.recipe import read_recipe
from lab.benchmarks.fusion import MODEL, vectors

K = 10
GRID = np.arange(21) / 20  # weights of vectors
SHIPPED = "min–max"
UNCHANGED = "identifiers, weight as shipped"
PLACE = 13  # of 0.65 on the grid
HELD_OUT = 200  # documents whose sentence, or first line, is taken out
HALVINGS = 200
ALLOWED = 0.01  # below the better side
GAIN = 0.015  # over reciprocal ranks
LOSS = 0.003  # in the mean, beside what is shipped
SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
CODE_SHARE, CODE_MORE = 0.08, 0.2
Weighted = Float64[np.ndarray, "weights queries"]


class Words:
    """BM25 as FTS5 counts it, of all documents, with how much a query could have at most."""

    def __init__(self, texts: Sequence[str], terms: Callable[[str], list[str]] = PORTER.terms) -> None:
        self.terms = terms
        counts = [Counter(terms(text)) for text in texts]
        self.lengths = np.array([sum(one.values()) for one in counts], dtype=np.float64)
        self.postings: dict[str, list[tuple[int, int]]] = {}
        for place, one in enumerate(counts):
            for term, times in one.items():
                self.postings.setdefault(term, []).append((place, times))

    def idf(self, term: str) -> float:
        """Return the weight of a term."""
        found = len(self.postings.get(term, ()))
        return max(np.log((len(self.lengths) - found + 0.5) / (found + 0.5)), 1e-6)

    def share(self, times: Float64[np.ndarray, " n"], lengths: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
        """Return what term frequencies count for, by document lengths."""
        return times * 2.2 / (times + 1.2 * (0.25 + 0.75 * lengths / self.lengths.mean()))

    def scores(self, query: str) -> Float32[np.ndarray, " documents"]:
        """Return the score of each document."""
        found = np.zeros(len(self.lengths))
        for term in self.terms(query):
            if rows := self.postings.get(term):
                places, times = np.array(rows).T
                found[places] += self.idf(term) * self.share(times.astype(np.float64), self.lengths[places])
        return found.astype(np.float32)

    def of_text(self, query: str, text: str) -> float:
        """Return the score of a text that is no document of the corpus."""
        counts = Counter(self.terms(text))
        length = np.array([float(sum(counts.values()))])
        return sum(
            self.idf(term) * float(self.share(np.array([float(counts[term])]), length)[0])
            for term in self.terms(query)
            if counts[term]
        )

    def most(self, query: str) -> float:
        """Return an upper bound of a query's scores."""
        return max(2.2 * sum(self.idf(term) for term in self.terms(query)), 1e-6)


@dataclass(frozen=True, eq=False)
class ScoredQueries:
    """Queries of a corpus, true ones or of its own documents: scores of all documents, and which are relevant."""

    vectors: Float32[np.ndarray, "queries documents"]
    words: Float32[np.ndarray, "queries documents"]
    most: Float64[np.ndarray, " queries"]
    relevant: Sequence[Mapping[int, int]]

    @property
    def coverage(self) -> Float64[np.ndarray, " queries"]:
        """Return the best BM25 of each query as a share of what it could have."""
        return self.words.max(axis=1) / self.most


def fused(asked: ScoredQueries, way: str, background: tuple[float, ...], scale: float) -> Weighted:
    """NDCG@10 of each query at each weight, by one way to fuse."""
    discounts = 1 / np.log2(np.arange(2, K + 2))
    found = np.empty((len(GRID), len(asked.relevant)))
    for row, judged in enumerate(asked.relevant):
        cosines, bm25 = asked.vectors[row].astype(np.float64), asked.words[row].astype(np.float64)
        near, said = best(cosines), best(bm25)
        said = said[bm25[said] > 0]
        pool = np.union1d(near, said)
        v, b = side(cosines, near, pool, way, from_zero=False), side(bm25, said, pool, way, from_zero=True)
        more = 1.0
        if way == "coverage":
            more = asked.coverage[row] / scale
        elif way == "separation":
            apart = separation(cosines[near]), separation(bm25[said])
            more = 2 * apart[1] / max(sum(apart), 1e-9)
        elif way == "background":
            v = (cosines[pool] - background[0]) / background[1]
            b = (bm25[pool] - background[2]) / background[3]
        sums = GRID[:, None] * v + (1 - GRID[:, None]) * more * b
        order = np.argsort(-sums, axis=1, kind="stable")[:, :K]
        gains = np.array([judged.get(int(place), 0) for place in pool], dtype=np.float64)[order]
        ideal = np.sort(np.array(list(judged.values()), dtype=np.float64))[::-1][:K]
        found[:, row] = (gains * discounts[: gains.shape[1]]).sum(axis=1) / (ideal * discounts[: len(ideal)]).sum()
    return found


def best(scores: Float64[np.ndarray, " documents"]) -> Int64[np.ndarray, " best"]:
    """Return the candidates of a side, best first."""
    return np.argsort(-scores, kind="stable")[:CANDIDATES]


def side(
    scores: Float64[np.ndarray, " documents"],
    hits: Int64[np.ndarray, " hits"],
    pool: Int64[np.ndarray, " pool"],
    way: str,
    *,
    from_zero: bool,
) -> Float64[np.ndarray, " pool"]:
    """Return what one side gives to each candidate of both."""
    if not len(hits):
        return np.zeros(len(pool))
    if way == "ranks":
        ranks = np.full(len(scores), np.inf)
        ranks[hits] = CONSTANT + 1 + np.arange(len(hits))
        return 1 / ranks[pool]
    least = 0.0 if from_zero and len(hits) < CANDIDATES else scores[hits[-1]]
    most = scores[hits[0]]
    shares = (scores[pool] - least) / (most - least) if most > least else np.ones(len(pool))
    if way != "looked up":
        shares = np.where(np.isin(pool, hits), shares, 0)
    if way == ("words squared" if from_zero else "vectors squared"):
        return shares**2
    return np.sqrt(shares) if way == "root of vectors" and not from_zero else shares


def separation(scores: Float64[np.ndarray, " hits"]) -> float:
    """Return how far the best hit is from the middle one, in deviations of all."""
    return float((scores[0] - np.median(scores)) / max(scores.std(), 1e-9)) if len(scores) > 1 else 0.0


@dataclass(frozen=True, eq=False)
class CandidateScores:
    """NDCG@10 of a set's queries by candidate and weight."""

    data: RetrievalSet
    scores: dict[str, Weighted]
    told: dict[str, float]

    @property
    def sides(self) -> Float64[np.ndarray, "sides queries"]:
        """Return vectors alone and words alone."""
        return self.scores[SHIPPED][[-1, 0]]


def measure(data: RetrievalSet, folder: Path) -> CandidateScores:
    """One set, by all candidates."""
    queries, documents = vectors(data, folder)
    texts, places = data.corpus.texts, {id_: place for place, id_ in enumerate(data.corpus.ids)}
    embedder = ContextualEmbedder.from_corpus(texts, model=MODEL, seed=0)
    words = Words(texts)
    relevant = [{places[id_]: grade for id_, grade in one.items() if id_ in places} for one in data.judgments]

    def asked(by: Words) -> ScoredQueries:
        bm25 = np.stack([by.scores(query) for query in data.queries])
        cosines = (queries @ documents.T).copy()
        for row, id_ in enumerate(data.query_ids):
            if id_ in places:  # it is the query
                cosines[row, places[id_]], bm25[row, places[id_]] = -1, 0
        return ScoredQueries(cosines, bm25, np.array([by.most(query) for query in data.queries]), relevant)

    true = asked(words)
    sentences = held_out(data, embedder, documents, words, plain=False)
    scale = float(sentences.coverage.mean()) if sentences else 1.0
    of = sentences or true  # without sentences, which is then told in the table
    background = float(of.vectors.mean()), float(of.vectors.std()), float(of.words.mean()), float(of.words.std())
    ways = (SHIPPED, "looked up", "words squared", "vectors squared", "root of vectors", "coverage", "separation")
    scores = {way: fused(true, way, background, scale) for way in (*ways, "background")}
    scores["identifiers"] = fused(asked(Words(texts, IDENTIFIERS.terms)), SHIPPED, background, scale)
    scores[UNCHANGED] = scores["identifiers"]
    ranks = fused(true, "ranks", background, scale)
    scores["reciprocal ranks"] = np.tile(ranks[len(GRID) // 2], (len(GRID), 1))
    told = {"code": code_share(texts), "sentences": float(len(sentences.relevant) if sentences else 0)}
    told |= {f"words alone, {name}": float(scores[name][0].mean()) for name in (SHIPPED, "identifiers")}
    shifted = {"code": CODE_MORE if told["code"] > CODE_SHARE else 0.0}
    for name, own in {
        "held-out sentences, plain words": held_out(data, embedder, documents, words, plain=True),
        "titles": titled(data, embedder, documents, words),
    }.items():
        wanted = 0.65
        if own:
            wanted = float(GRID[10 + int(fused(own, SHIPPED, background, scale).mean(axis=1)[10:19].argmax())])
        told[name] = wanted
        shifted[name] = (wanted - 0.65) / 2
    for name, more in shifted.items():
        moved = np.clip(np.round((GRID + more) * 20).astype(int), 0, 20)
        scores[name] = scores[SHIPPED][moved]
    return CandidateScores(data, scores, told)


def code_share(texts: Sequence[str]) -> float:
    """Return the share of characters that prose hardly has."""
    some = np.random.default_rng(0).permutation(len(texts))[:HELD_OUT]
    joined = "".join(texts[int(place)] for place in some)
    return sum(not (one.isalnum() or one.isspace() or one in ".,;:'\"-") for one in joined) / max(len(joined), 1)


def held_out(
    data: RetrievalSet,
    embedder: ContextualEmbedder,
    documents: Float32[np.ndarray, "documents dim"],
    words: Words,
    *,
    plain: bool,
) -> ScoredQueries | None:
    """Sentences that have to find the rest of their document; plain ones without what only that document would say."""
    rng = np.random.default_rng(0)
    asked: list[tuple[int, str, str]] = []
    for place in rng.permutation(len(data.corpus.texts)):
        text = data.corpus.texts[int(place)]
        parts = [part for part in SENTENCE.split(text) if part.strip()]
        some = [part for part in parts if 5 <= len(part.split()) <= 40]
        if len(parts) < 3 or not some:
            continue
        taken = some[int(rng.integers(len(some)))]
        query = " ".join(word for word in taken.split() if not plain or usual(word, words))
        if len(query.split()) >= 3:
            asked.append((int(place), query, text.replace(taken, " ")))
        if len(asked) == HELD_OUT:
            break
    return of_documents(data, embedder, documents, words, asked)


def usual(word: str, words: Words) -> bool:
    """Return True for a word that three other documents have, and no figure."""
    terms = PORTER.terms(word)
    return not re.search(r"\d", word) and all(len(words.postings.get(term, ())) > 3 for term in terms)


def titled(
    data: RetrievalSet, embedder: ContextualEmbedder, documents: Float32[np.ndarray, "documents dim"], words: Words
) -> ScoredQueries | None:
    """First lines that have to find the rest of their document; parents' names where there are no lines."""
    texts, parents = data.corpus.texts, data.corpus.parents
    lines = [text.partition("\n") for text in texts]
    with_line = [place for place, (line, _, rest) in enumerate(lines) if len(line) <= 100 and rest.strip()]
    some = np.random.default_rng(0).permutation(len(texts)).tolist()
    if len(with_line) * 2 >= len(texts):
        chosen = [place for place in some if place in set(with_line)][:HELD_OUT]
        return of_documents(data, embedder, documents, words, [(at, lines[at][0], lines[at][2]) for at in chosen])
    if parents is None:
        return None
    names = list(dict.fromkeys(parent for place in some if (parent := parents[place])))[:HELD_OUT]
    queries = [name.replace("_", " ") for name in names]
    of = [{place: 1 for place, parent in enumerate(parents) if parent == name} for name in names]
    bm25 = np.stack([words.scores(query) for query in queries])
    most = np.array([words.most(query) for query in queries])
    return ScoredQueries(embedder.embed_queries(queries) @ documents.T, bm25, most, of)


def of_documents(
    data: RetrievalSet,
    embedder: ContextualEmbedder,
    documents: Float32[np.ndarray, "documents dim"],
    words: Words,
    asked: Sequence[tuple[int, str, str]],
) -> ScoredQueries | None:
    """Ask for documents of which the query was taken out."""
    asked = [one for one in asked if one[1].strip() and one[2].strip()]
    if len(asked) < 50:
        return None
    texts, parents = data.corpus.texts, data.corpus.parents
    siblings = None
    if parents is not None:
        rows = sibling_positions(parents, texts, SIBLINGS, rule=embedder.context.manifest.sibling_rule)
        siblings = [[texts[place] for place in rows[at]] for at, _, _ in asked]
    rests = embedder.embed_passages([rest for _, _, rest in asked], siblings).vectors
    queries = [query for _, query, _ in asked]
    embedded = embedder.embed_queries(queries)
    cosines = embedded @ documents.T
    bm25 = np.stack([words.scores(query) for query in queries])
    for row, (place, query, rest) in enumerate(asked):
        cosines[row, place] = embedded[row] @ rests[row]
        bm25[row, place] = words.of_text(query, rest)
    return ScoredQueries(
        cosines, bm25, np.array([words.most(query) for query in queries]), [{at: 1} for at, _, _ in asked]
    )


def chosen(found: Sequence[CandidateScores], name: str, halves: Sequence[Bool[np.ndarray, " queries"]]) -> int:
    """Return the place of the weight with the best mean over sets."""
    if name in (SHIPPED, UNCHANGED):
        return PLACE
    means = [one.scores[name][:, half].mean(axis=1) for one, half in zip(found, halves, strict=True)]
    return int(np.mean(means, axis=0).argmax())


def passes(
    found: Sequence[CandidateScores], name: str, place: int, halves: Sequence[Bool[np.ndarray, " queries"]]
) -> tuple[bool, float, str]:
    """Return whether the gate is passed on these queries, and the set that is worst beside its better side."""
    pairs = list(zip(found, halves, strict=True))
    own = np.array([one.scores[name][place, half].mean() for one, half in pairs])
    better = np.array([one.sides[:, half].mean(axis=1).max() for one, half in pairs])
    others = {
        other: np.mean([one.scores[other][PLACE, half].mean() for one, half in pairs])
        for other in ("reciprocal ranks", SHIPPED)
    }
    worst = int((own - better).argmin())
    mean_holds = own.mean() >= others["reciprocal ranks"] + GAIN and own.mean() >= others[SHIPPED] - LOSS
    least = float((own - better)[worst])
    return bool(mean_holds and least >= -ALLOWED), least, found[worst].data.corpus.name


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--vectors", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Path("lab/tables/fusion-candidates.csv"))
    options = parser.parse_args()
    warnings.simplefilter("ignore", TruncationWarning)
    found: list[CandidateScores] = []
    for data in read_sets(read_recipe(options.sets, SetsConfig), options.data):
        found.append(one := measure(data, options.vectors))
        print(data.corpus.name, one.told, flush=True)
    everything = [np.ones(len(one.data.queries), dtype=np.bool_) for one in found]
    rng = np.random.default_rng(0)
    halvings = [[rng.permutation(len(one.data.queries)) % 2 == 0 for one in found] for _ in range(HALVINGS)]
    with options.output.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.writer(lines, lineterminator="\n")
        names = [one.data.corpus.name for one in found]
        writer.writerow(["candidate", "w", "mean", "95 % beside the shipped", "worst", "its 95 %", "passes",
                         "halvings that pass", "worst set of halvings, mean", *names])  # fmt: skip
        for name in found[0].scores:
            place = chosen(found, name, everything)
            passed, _, at = passes(found, name, place, everything)
            worst = found[names.index(at)]
            better = worst.sides[worst.sides.mean(axis=1).argmax()]
            beside = [PairedQueries(one.scores[name][place] - one.scores[SHIPPED][PLACE], one.data.blocks)
                      for one in found]  # fmt: skip
            again = [passes(found, name, chosen(found, name, one), [~half for half in one]) for one in halvings]
            below = compare([PairedQueries(worst.scores[name][place] - better, worst.data.blocks)])
            less = [one.scores[name][place].mean() - one.sides.mean(axis=1).max() for one in found]
            row = [
                name,
                f"{GRID[place]:.2f}",
                f"{100 * np.mean([one.scores[name][place].mean() for one in found]):.1f}",
                "{:+.1f} … {:+.1f}".format(*(100 * end for end in compare(beside).queries)),
                f"{at} {100 * below.mean:+.1f}",
                "{:+.1f} … {:+.1f}".format(*(100 * end for end in below.queries)),
                "yes" if passed else "no",
                f"{np.mean([one for one, _, _ in again]):.0%}",
                f"{100 * np.mean([one for _, one, _ in again]):+.1f}",
                *(f"{100 * one:+.1f}" for one in less),
            ]
            writer.writerow(row)
            print(*row, sep="  ", flush=True)
    for one in found:
        gain = one.scores[UNCHANGED][PLACE] - one.scores[SHIPPED][PLACE]
        by_set = compare([PairedQueries(gain, one.data.blocks)])
        low, high = by_set.queries
        print(one.data.corpus.name, UNCHANGED, f"{100 * by_set.mean:+.1f} ({100 * low:+.1f} … {100 * high:+.1f})")


if __name__ == "__main__":
    main()
