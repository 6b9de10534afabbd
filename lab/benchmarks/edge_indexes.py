"""What the indexes of a QdrantEdgeStore find, take and cost, on real texts embedded by the bundled model.

Run with: python lab/benchmarks/edge_indexes.py TEXTS --cache FOLDER [--records 20000] [--json]

TEXTS and --cache are those of faiss_indexes.py, and so are the filters. Each store asks its queries in turns with one
that has no index; times are medians of these, and their ratio is what a busy machine leaves of them.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from faiss_indexes import SPACE, TIMED, K, embedded, exact, filled, filters

from cde_rag.stores.qdrant_edge import Hnsw, QdrantEdgeStore

NO_INDEX = 10**9  # rows
PLAIN = Hnsw()
KINDS: dict[str, tuple[str | None, Hnsw]] = {
    "HNSW": (None, PLAIN),
    "int8": ("int8", PLAIN),
    "binary": ("binary", PLAIN),
    "prefix-128": ("prefix-128", PLAIN),
    "prefix-64": ("prefix-64", PLAIN),
    "HNSW, m 32, ef_construct 256, ef 256": (None, Hnsw(m=32, ef_construct=256, ef=256)),
}


def size_mb(folder: Path) -> float:
    """What a folder takes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*")) / 1e6


def measured(folder: Path, cache: Path, records: int) -> list[dict[str, Any]]:
    """For each kind of index what it found, took and cost."""
    vectors, queries = embedded(folder, cache, records)
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        flat = QdrantEdgeStore(Path(scratch, "flat"), flat_rows=NO_INDEX)
        started = time.perf_counter()
        fields = filled(flat, vectors)
        added_s = time.perf_counter() - started
        truth = {name: (where, exact(vectors, queries, kept)) for name, where, kept in filters(fields, records)}
        for name, (quantization, hnsw) in {"none": (None, PLAIN), **KINDS}.items():
            folder = Path(scratch, "store")
            rows = NO_INDEX if name == "none" else 100
            store = QdrantEdgeStore(folder, flat_rows=rows, quantization=quantization, hnsw=hnsw)
            started = time.perf_counter()
            filled(store, vectors)
            line: dict[str, Any] = {"index": name, "add_ratio": (time.perf_counter() - started) / added_s}
            line["mb"] = size_mb(folder)
            line["recall"], line["ms"], line["ratio"] = {}, {}, {}
            for kept, (where, best) in truth.items():
                found = store.search(queries, K, fingerprint=SPACE, where=where)
                if any(len(hits) != len(wanted) for hits, wanted in zip(found, best, strict=True)):
                    raise AssertionError(f"{name}, {kept}: fewer hits than there are")
                same = sum(len({hit.id for hit in hits} & wanted) for hits, wanted in zip(found, best, strict=True))
                line["recall"][kept] = same / sum(map(len, best))
                times: dict[QdrantEdgeStore, list[float]] = {flat: [], store: []}
                for query in queries[:TIMED]:
                    for asked, took in times.items():
                        started = time.perf_counter()
                        asked.search(query[None], K, fingerprint=SPACE, where=where)
                        took.append(time.perf_counter() - started)
                line["ms"][kept] = 1000 * median(times[store])
                line["ratio"][kept] = median(one / other for other, one in zip(*times.values(), strict=True))
            lines.append(line)
            print(json.dumps(line), flush=True)
            store.close()
            _remove(folder)
        flat.close()
    return lines


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def main() -> None:
    """Measure, and print one line for each index, or a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--records", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    lines = measured(options.texts, options.cache, options.records)
    if options.json:
        return
    columns = ("all", "drawn 50.0%", "drawn 10.0%", "near 50.0%", "near 10.0%")
    print(f"| index | added, to none | {' | '.join(columns)} | time of all, to none | of near 50 % |")
    for line in lines:
        cells = [line["index"], f"{line['add_ratio']:.0f}", *(f"{line['recall'][name]:.3f}" for name in columns)]
        print(f"| {' | '.join(cells)} | {line['ratio']['all']:.2f} | {line['ratio']['near 50.0%']:.2f} |")


if __name__ == "__main__":
    main()
