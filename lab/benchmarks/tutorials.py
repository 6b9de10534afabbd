"""`cde-rag index` and the frameworks' own tutorials on the same folders: answers, tokens, seconds, lines of code.

The tutorials are LangChain's, LlamaIndex' and txtai's, with their splitters and all-MiniLM-L6-v2 by
sentence-transformers. Their passages differ in length, and a long one holds a quote more easily: so answers are also
counted within the first tokens that are returned. Run as a module, from the root of a clone:
python -m lab.benchmarks.tutorials FOLDER… (those of `cde-rag evaluate`; txtai has to be installed besides).
"""

import argparse
import csv
import inspect
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from jaxtyping import Float64

from cde_rag.cli.answers import corpora_of, indexed, pages_of
from cde_rag.evaluation.answer_evaluation import METRICS, MRR, Scores, counting_tokenizer, scored
from cde_rag.evaluation.answer_passages import PagePassage
from cde_rag.evaluation.answer_scores import JudgedPassages as Judged
from cde_rag.evaluation.answer_scores import answer_difference, judged_passages, mean_score, parts_of
from cde_rag.evaluation.answer_systems import JudgedIndex
from cde_rag.evaluation.intervals import Difference
from cde_rag.evaluation.question_folder import Site, page_names, read_questions
from cde_rag.evaluation.ranking import DEPTH
from cde_rag_training.clustering.surrogate import minilm_folder

INDEX: Final = "cde-rag index"
_WITHIN: Final = "found@1000"
_FIELDS: Final = ("corpus", "form", "system", "questions", *METRICS, "index_s", "search_s")


class TutorialHit(NamedTuple):
    """Passage that a tutorial's search returns."""

    page: str
    text: str


Search = Callable[[str], list[TutorialHit]]


class SystemScores(NamedTuple):
    """Scores of one system on one corpus, and its seconds."""

    scores: Scores
    index_s: float
    search_s: float


def langchain(pages: Path) -> Search:
    """Index a folder as LangChain's tutorial on semantic search does."""
    from langchain_community.document_loaders import DirectoryLoader, TextLoader
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    documents = DirectoryLoader(str(pages), glob="**/*", loader_cls=TextLoader).load()
    splitter = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=200, add_start_index=True)
    store = InMemoryVectorStore(_of_langchain())
    store.add_documents(splitter.split_documents(documents))

    return lambda query: [
        TutorialHit(hit.metadata["source"], hit.page_content) for hit in store.similarity_search(query, DEPTH)
    ]


def llama_index(pages: Path) -> Search:
    """Index a folder as LlamaIndex' starter tutorial does."""
    from llama_index.core import SimpleDirectoryReader, VectorStoreIndex

    documents = SimpleDirectoryReader(str(pages), recursive=True).load_data()
    index = VectorStoreIndex.from_documents(documents, embed_model=_of_llama_index())
    retriever = index.as_retriever(similarity_top_k=DEPTH)

    return lambda query: [TutorialHit(hit.metadata["file_path"], hit.text) for hit in retriever.retrieve(query)]


def txtai(pages: Path) -> Search:
    """Index the paragraphs of a folder's files as txtai's introduction indexes texts."""
    from txtai import Embeddings

    files = [path for path in sorted(pages.rglob("*")) if path.is_file()]
    passages = [
        TutorialHit(str(file), text) for file in files for text in file.read_text().split("\n\n") if text.strip()
    ]
    embeddings = Embeddings(path=str(minilm_folder()))
    embeddings.index(passage.text for passage in passages)

    return lambda query: [passages[place] for place, _ in embeddings.search(query, DEPTH)]


TUTORIALS: Final[dict[str, Callable[[Path], Search]]] = {
    "LangChain's tutorial": langchain,
    "LlamaIndex' tutorial": llama_index,
    "txtai": txtai,
}


def lines_of_code() -> dict[str, int]:
    """Return the lines that each tutorial needs without its imports, and those of `Collection.from_files`."""
    counted = {INDEX: 2}
    for name, tutorial in TUTORIALS.items():
        lines = [line.strip() for line in inspect.getsource(tutorial).splitlines()]
        counted[name] = sum(bool(line) and not line.startswith(("def ", '"""', "from ")) for line in lines)
    return counted


def _of_langchain() -> Any:
    """Return LangChain's class of `langchain-huggingface`, as far as the tutorial uses it."""
    from langchain_core.embeddings import Embeddings
    from sentence_transformers import SentenceTransformer

    class MiniLMForLangChain(Embeddings):
        def __init__(self) -> None:
            self._model = SentenceTransformer(str(minilm_folder()), device="cpu")

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return self._model.encode(texts).tolist()

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    return MiniLMForLangChain()


def _of_llama_index() -> Any:
    """Return LlamaIndex' class of `llama-index-embeddings-huggingface`, as far as the tutorial uses it."""
    from llama_index.core.embeddings import BaseEmbedding
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm_folder()), device="cpu")

    class MiniLMForLlamaIndex(BaseEmbedding):
        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return model.encode(texts).tolist()

        def _get_text_embedding(self, text: str) -> list[float]:
            return self._get_text_embeddings([text])[0]

        def _get_query_embedding(self, query: str) -> list[float]:
            return self._get_text_embeddings([query])[0]

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

    return MiniLMForLlamaIndex()


def measured(folder: Path, site: Site, work: Path) -> tuple[Judged, dict[str, SystemScores]]:
    """Return the index's passages of one corpus with the questions, and the scores of each system.

    Args:
        folder: Folder of the corpus.
        site: Facts about it.
        work: Scores and indexes are kept there; what is there is not measured again.
    """
    pages, kept = pages_of(folder, work / site.name)
    is_new, started = not any(kept.glob("*.faiss")), time.perf_counter()
    collection = indexed(pages, kept, [])
    seconds = time.perf_counter() - started if is_new else math.nan  # an earlier run was stopped before its scores
    with collection:
        questions = read_questions(folder, site.name, page_names(pages))
        index = JudgedIndex.of_pages(collection, questions, site)
        runs = {INDEX: kept_scores(kept, INDEX, lambda: index_scores(index, seconds))}
    for system, tutorial in TUTORIALS.items():
        runs[system] = kept_scores(kept, system, partial(tutorial_scores, tutorial, pages, index.data))
        print(f"{site.name}: {system}", file=sys.stderr, flush=True)
    return index.data, runs


def index_scores(index: JudgedIndex, seconds: float) -> SystemScores:
    """Score the default search of an index that was made in so many seconds."""
    started = time.perf_counter()
    hits = index.collection.searcher().search_batch(index.data.queries, DEPTH)
    spent = time.perf_counter() - started
    rankings = [[index.ids[hit.id] for hit in some] for some in hits]
    return SystemScores(scored(index.data, rankings, counting_tokenizer()), seconds, spent)


def tutorial_scores(tutorial: Callable[[Path], Search], pages: Path, asked: Judged) -> SystemScores:
    """Index a folder by another system, and score its hits, whose passages are its own."""
    started = time.perf_counter()
    search = tutorial(pages)
    ready = time.perf_counter()
    hits = [search(query) for query in asked.queries]
    spent = time.perf_counter() - ready
    numbers = {hit: number for number, hit in enumerate(dict.fromkeys(hit for some in hits for hit in some))}
    passages = [
        PagePassage(Path(hit.page).resolve().relative_to(pages.resolve()).as_posix(), number, "", hit.text, hit.text)
        for hit, number in numbers.items()
    ]
    data = judged_passages(asked.site, passages, asked.questions)
    rankings = [[passages[numbers[hit]].id for hit in dict.fromkeys(some)] for some in hits]
    return SystemScores(scored(data, rankings, counting_tokenizer()), ready - started, spent)


def kept_scores(folder: Path, system: str, measure: Callable[[], SystemScores]) -> SystemScores:
    """Return the scores that a folder holds of a system, or measure and write them."""
    file = folder / f"{system.replace(' ', '-')}.json"
    if not file.exists():
        made = measure()
        scores = {metric: values.tolist() for metric, values in made.scores.items()}
        file.write_text(json.dumps(made._replace(scores=scores)._asdict()), encoding="utf-8")
    found = SystemScores(**json.loads(file.read_text(encoding="utf-8")))
    return found._replace(scores={metric: np.array(values) for metric, values in found.scores.items()})


class TutorialComparison:
    """The systems on all corpora.

    Args:
        corpora: Results of `measured`.
    """

    def __init__(self, corpora: Sequence[tuple[Judged, dict[str, SystemScores]]]) -> None:
        self._data = [data for data, _ in corpora]
        self._runs = [runs for _, runs in corpora]
        self._all = parts_of(self._data)["all"]

    def mean(self, system: str, metric: str) -> float:
        """Return the mean over corpora, a fraction."""
        return mean_score(self._scores(system, metric), self._all)

    def difference(self, system: str, metric: str) -> Difference:
        """Return the index less a tutorial."""
        return answer_difference(self._data, self._scores(INDEX, metric), self._scores(system, metric), self._all)

    def seconds(self, system: str) -> tuple[float, float]:
        """Return the seconds of all indexes, and of a query in the mean."""
        queries = sum(len(data.questions) for data in self._data)
        return (
            sum(runs[system].index_s for runs in self._runs),
            sum(runs[system].search_s for runs in self._runs) / queries,
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each corpus and system."""
        return [
            {
                "corpus": data.site.name,
                "form": data.site.form,
                "system": system,
                "questions": len(data.questions),
                **{metric: round(float(run.scores[metric].mean()), 4) for metric in METRICS},
                "index_s": round(run.index_s, 1),
                "search_s": round(run.search_s, 2),
            }
            for data, runs in zip(self._data, self._runs, strict=True)
            for system, run in runs.items()
        ]

    def __str__(self) -> str:
        lines = [f"{sum(len(data.questions) for data in self._data):,} questions, {len(self._data)} corpora", ""]
        counted = lines_of_code()
        for system in (INDEX, *TUTORIALS):
            index_s, search_s = self.seconds(system)
            values = "  ".join(f"{METRICS[metric]} {100 * self.mean(system, metric):.1f}" for metric in METRICS)
            costs = f"index {index_s:,.0f} s, query {1000 * search_s:.0f} ms, {counted[system]} lines"
            lines.append(f"{system}: {values}; {costs}")
        for system in TUTORIALS:
            for metric in (MRR, _WITHIN):
                one = self.difference(system, metric)
                intervals = "; ".join(
                    f"{100 * low:+.1f} … {100 * high:+.1f}" for low, high in filter(None, (one.queries, one.sets))
                )
                lines.append(f"{INDEX} less {system}, {METRICS[metric]}: {100 * one.mean:+.1f} ({intervals})")
        return "\n".join(lines)

    def _scores(self, system: str, metric: str) -> list[Float64[np.ndarray, " _"]]:
        return [runs[system].scores[metric] for runs in self._runs]


def drawing(found: TutorialComparison) -> str:
    """Draw the share of questions whose answer stands within the first 1,000 tokens returned, and MRR@10, as SVG."""
    systems = (INDEX, *TUTORIALS)
    panels = ((_WITHIN, "answers within the first 1,000 tokens, %"), (MRR, "MRR@10 × 100"))
    row, left, width, gap = 26, 170, 190, 60
    height, font = 46 + row * len(systems), 'font-family="sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + 2 * width + gap + 40}" height="{height}" {font}>',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for place, system in enumerate(systems):
        weight = "bold" if system == INDEX else "normal"
        parts.append(f'<text x="8" y="{56 + row * place}" font-weight="{weight}">{escape(system)}</text>')
    for panel, (metric, title) in enumerate(panels):
        x = left + panel * (width + gap)
        parts.append(f'<text x="{x}" y="26">{escape(title)}</text>')
        for place, system in enumerate(systems):
            value = 100 * found.mean(system, metric)
            colour = "#1f6f8b" if system == INDEX else "#8a979e"
            y = 42 + row * place
            parts.append(f'<rect x="{x}" y="{y}" width="{value / 100 * width:.1f}" height="18" fill="{colour}"/>')
            parts.append(f'<text x="{x + value / 100 * width + 6:.1f}" y="{y + 14}">{value:.0f}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    """Measure, and write what is asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of pages with questions")
    parser.add_argument("--split", default="dev", help="of a folder with several corpora")
    parser.add_argument("--work", type=Path, default=Path("runs/tutorials"), help="keep indexes and scores there")
    parser.add_argument("--output", type=Path, help="table, CSV")
    parser.add_argument("--plot", type=Path, help="drawing, SVG")
    options = parser.parse_args()
    corpora = corpora_of(options.folders, options.split)
    found = TutorialComparison([measured(*corpus, options.work) for corpus in corpora])
    print(found)
    if options.output:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, _FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(found.rows())
    if options.plot:
        options.plot.write_text(drawing(found), encoding="utf-8")


if __name__ == "__main__":
    main()
