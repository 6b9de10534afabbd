"""Seconds until a large folder answers its first question, and until it is embedded, beside those of a plain script.

FOLDERs have pages and judged questions; their pages become one folder. `cde-rag index` reads it, while another process
asks the questions in turn until a first hit comes from a page that answers. The plain script embeds the same passages
by all-MiniLM-L6-v2 in sentence-transformers, puts them into a FAISS index, and answers only then. Last, a collection is
filled in portions, of which every second one has a process beside it that asks five questions a second with a budget of
0. It needs a machine without other work. semble's static model is on the Hugging Face hub only, so it is not here.

Run with: python -m lab.benchmarks.first_answer FOLDER… [--passages 10000] [--output F.csv]
"""

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from cde_rag import Collection, Record
from cde_rag.evaluation.question_folder import Site, read_corpus, unpack, unpacked_path
from cde_rag_training.clustering.surrogate import minilm_folder
from lab.experiments.result_tables import write_table

PORTIONS: Final = 8  # of a filling, half of them beside queries
ORDERS: Final = 5  # of the questions: none is about the folder that is read first
RATE: Final = 5  # queries a second beside a filling
WORDS: Final = 90  # of a passage in the mean, at least: shorter ones are embedded in less time than they are read
ANSWERED: Final = """
import json, sys, time
from cde_rag import Collection
from cde_rag.errors import CDEError
questions, deadline = json.load(open(sys.argv[2])), time.monotonic() + 3600
print("ready", flush=True)
tries = 0
while time.monotonic() < deadline:
    try:
        with Collection.open(sys.argv[1]) as collection:
            for question, pages in questions:
                tries += 1
                hits = collection.search(question, k=1)
                if hits and any(str(hits[0].metadata["source"]).endswith(page) for page in pages):
                    print(json.dumps([tries, len(collection) - collection.pending]), flush=True)
                    sys.exit()
    except CDEError:  # it is not there yet
        time.sleep(0.05)
"""
ASKED: Final = """
import json, sys, time
from cde_rag import Collection
collection = Collection.open(sys.argv[1])
searcher = collection.searcher(embed_budget_ms=0)
searcher.search("a search that opens the files")
print("ready", flush=True)
questions, started, count = json.load(open(sys.argv[2])), time.monotonic(), 0
while True:
    searcher.search(questions[count % len(questions)][0])
    count += 1
    time.sleep(max(0.0, started + count / float(sys.argv[3]) - time.monotonic()))
"""
PLAIN: Final = """
import json, sys
import faiss, numpy
from sentence_transformers import SentenceTransformer
texts, model = json.load(open(sys.argv[1])), SentenceTransformer(sys.argv[2], device="cpu")
vectors = model.encode(texts, normalize_embeddings=True)
index = faiss.IndexFlatIP(vectors.shape[1])
index.add(vectors)
index.search(model.encode([sys.argv[3]], normalize_embeddings=True), 1)
"""


class FirstAnswer(NamedTuple):
    """Seconds of one folder.

    Attributes:
        passages: In the folder.
        words: Of a passage, in the mean.
        searchable_s: From the start of `cde-rag index` until another process has a right first hit; median of orders.
        searches: What it asked until then.
        made: Vectors that were there then.
        embedded_s: Until the command ended.
        minilm_s: Of the plain script, until its first answer.
        alone_rate: Passages a second of a filling.
        beside_rate: The same beside five queries a second.
    """

    passages: int
    words: float
    searchable_s: float
    searches: int
    made: int
    embedded_s: float
    minilm_s: float
    alone_rate: float
    beside_rate: float


def main() -> None:
    """Print the figures, and write them where an option names a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--passages", type=int, default=10_000, help="folders are read until there are so many, about")
    parser.add_argument("--filled", type=int, default=2400, help="passages of the filling beside queries")
    parser.add_argument("--output", type=Path, help="file for the row")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        questions, index = place / "questions.json", place / "pages.faiss"
        asked, runs = (
            unpacked(options.folders, place / "pages", options.passages),
            list[tuple[float, list[int], float]](),
        )
        for order in range(ORDERS):
            random.Random(order).shuffle(asked)
            questions.write_text(json.dumps(asked), encoding="utf-8")
            shutil.rmtree(index, ignore_errors=True)
            runs.append(indexed(place / "pages", index, questions, to_end=order == ORDERS - 1))
        embedded_s = runs[-1][2]
        searchable_s, (searches, made), _ = sorted(runs)[ORDERS // 2]
        print("first answers after", ", ".join(f"{seconds:.1f}" for seconds, *_ in sorted(runs)), "s", flush=True)
        with Collection.open(index) as collection:
            records, embedder = list(collection.scroll()), collection.embedder
            texts = [record.text for record in records]
            words = sum(len(text.split()) for text in texts) / len(texts)
            print(f"{len(texts):,} passages of {words:.0f} words", flush=True)
            print(
                f"first answer after {searchable_s:.1f} s, with {made} vectors; all after {embedded_s:.1f} s: ", end=""
            )
            print(f"{searchable_s / embedded_s:.1%}", flush=True)
            plain_s = plain(texts, json.loads(questions.read_text(encoding="utf-8"))[0][0], place)
            print(f"all-MiniLM-L6-v2 and FAISS: first answer after {plain_s:.1f} s", flush=True)
            alone, beside = filled(records[: options.filled], embedder, place / "filled.faiss", questions)
        print(f"filling: {alone:.1f} passages a second, beside {RATE} queries a second {beside:.1f}", end=": ")
        print(f"{beside / alone - 1:+.1%}", flush=True)
        row = FirstAnswer(len(texts), words, searchable_s, searches, made, embedded_s, plain_s, alone, beside)
        if options.output is not None:
            write_table(options.output, [row])


def unpacked(folders: Sequence[Path], place: Path, passages: int) -> list[tuple[str, list[str]]]:
    """Write the pages of folders, and return their questions with the pages that answer."""
    questions, words = list[tuple[str, list[str]]](), 0
    for folder in folders:
        if words >= passages * 1.25 * WORDS:  # of a passage, about
            break
        corpus = read_corpus(folder, Site(folder.name))
        unpack(corpus.pages, place / folder.name)
        words += sum(len(text.split()) for text in corpus.pages.values())
        for one in corpus.questions:
            questions.append((one.text, [f"{folder.name}/{unpacked_path(answer.page)}" for answer in one.answers]))
    return questions


def indexed(pages: Path, index: Path, questions: Path, *, to_end: bool) -> tuple[float, list[int], float]:
    """Index a folder by the command; return seconds to an answer, its searches and the vectors then, all seconds.

    Where it is not to be embedded to the end, it is killed after the answer.
    """
    asking = started_process(ANSWERED, index, questions)
    started = time.perf_counter()
    command = [sys.executable, "-m", "cde_rag", "index", str(pages), str(index), "--no-progress"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as indexing:
        assert asking.stdout is not None
        answer = asking.stdout.readline()
        searchable_s = time.perf_counter() - started
        if not to_end:
            indexing.kill()
        errors = indexing.communicate()[1]
        if indexing.returncode and to_end:
            raise RuntimeError(f"cde-rag index failed: {errors}")
    asking.wait()
    return searchable_s, json.loads(answer), time.perf_counter() - started


def started_process(code: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a process of Python, and wait until it has imported what it needs."""
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        raise RuntimeError("The process that asks questions ended.")
    return process


def plain(texts: Sequence[str], question: str, place: Path) -> float:
    """Return the seconds of the plain script, of which the start of Python and its imports are a part."""
    file = place / "texts.json"
    file.write_text(json.dumps(texts), encoding="utf-8")
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", PLAIN, file, str(minilm_folder()), question], check=True, capture_output=True)
    return time.perf_counter() - started


def filled(records: Sequence[Record], embedder: Any, place: Path, questions: Path) -> tuple[float, float]:
    """Return the passages a second of a filling alone, and beside queries, of which each has every second portion."""
    seconds, portion = [0.0, 0.0], len(records) // PORTIONS
    with closing(Collection.create(place, embedder)) as collection:
        collection.add_records(records[: portion * PORTIONS], embed="later")
        for number in range(PORTIONS):
            busy = number % 4 in (1, 2)  # alone, beside, beside, alone: both have the same places in the mean
            asking = started_process(ASKED, place, questions, RATE) if busy else None
            started = time.perf_counter()
            collection.embed_pending(limit=portion)
            seconds[busy] += time.perf_counter() - started
            if asking is not None:
                if asking.poll() is not None:
                    raise RuntimeError("The process that asks questions ended.")
                asking.kill()
                asking.wait()
    return (portion * PORTIONS / 2 / seconds[0], portion * PORTIONS / 2 / seconds[1])


if __name__ == "__main__":
    main()
