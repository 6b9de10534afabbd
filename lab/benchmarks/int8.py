"""Calibrated int8 in OpenVINO: CPU time, cosines to float32 and NDCG@10; results in lab/pages/int8.md.

NNCF quantizes the second stage of a bundled model with SmoothQuant, on generic documents of the library in both roles,
with and without context and siblings. It is no dependency of the library: pip install nncf. Times are those of the CPU,
not of the clock, on one thread, so that a shared machine can be used. Run with:
python -m lab.benchmarks.int8 [--data FOLDER] [--texts 1000] [--sets cosqa:dev …], where FOLDER has retrieval sets.
"""

import argparse
import time
import warnings
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.context.generic_documents import generic_documents
from cde_rag.errors import CDEWarning, require
from cde_rag.evaluation.beir import read_beir
from cde_rag.models.files.model_files import find
from cde_rag.models.one_way.graph_runner import GraphRunner, StoredModel
from cde_rag.models.runtimes.engines import CompiledGraph, OpenVinoEngine
from cde_rag.models.runtimes.graph_cache import kept_graph
from lab.benchmarks.windows import cut, scores
from lab.python_docs import documentation

Inputs = Mapping[str, Shaped[np.ndarray, "..."]]
SETS = ("cosqa:dev", "parents_redis", "parents_helm")  # development sets whose documents are short
CALIBRATION = 300  # texts
REPEATS = 4
EXACT = "float32"


class Recorder(CompiledGraph):
    """A graph that keeps its inputs, for the calibration."""

    def __init__(self, dim: int) -> None:
        self.inputs, self._dim = list[Inputs](), dim

    def run(self, inputs: Inputs) -> Float32[np.ndarray, "batch dim"]:
        """Keep the inputs."""
        self.inputs.append(dict(inputs))
        return np.full((len(inputs["ids"]), self._dim), self._dim**-0.5, dtype=np.float32)


class OtherGraph(GraphRunner):
    """The stages of a model with another graph as second stage, on one thread."""

    def __init__(self, stored: StoredModel, graph: CompiledGraph) -> None:
        self._second = graph
        super().__init__(stored, "openvino", EXACT)

    def _second_stage(self, threads: int) -> CompiledGraph:  # all are measured on one
        return self._second


def main() -> None:
    """Print times and cosines of each precision, then NDCG of each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cde-mini-1", help="a bundled one-way model")
    parser.add_argument("--data", type=Path, help="retrieval sets; only cosines and times without it")
    parser.add_argument("--texts", type=int, default=1000, help="texts of which the cosines are")
    parser.add_argument("--sets", nargs="+", default=SETS, help="names in --data, with a split if it is another")
    options = parser.parse_args()
    warnings.simplefilter("ignore", CDEWarning)
    stored = StoredModel.read(find(options.model))
    with TemporaryDirectory() as folder:
        models = precisions(stored, Path(folder))
    texts = [record.text for record in islice(documentation(), 0, 3 * options.texts, 3)]
    context = ContextualEmbedder.from_corpus(texts, model=models[EXACT]).context
    embedders = {name: ContextualEmbedder(model, context) for name, model in models.items()}
    print_times(embedders, texts)
    exact = embedders[EXACT].embed_documents(texts)
    for name, embedder in embedders.items():
        cosines = (embedder.embed_documents(texts) * exact).sum(axis=1)
        print(f"{name:24} of {len(texts)}: worst {cosines.min():.6f}  mean {cosines.mean():.6f}", flush=True)
    for name in options.sets if options.data is not None else ():
        base, _, split = name.partition(":")
        data = cut(read_beir(options.data / base, split=split or "test")).sample_queries(200)
        own = ContextualEmbedder.from_corpus(data.corpus.texts, model=models[EXACT]).context
        for precision, model in models.items():
            embedder = ContextualEmbedder(model, own)
            documents = embedder.embed_documents(data.corpus.texts)
            found = scores(data, embedder.embed_queries(data.queries) @ documents.T, range(len(documents)))
            print(f"{name:16} {len(found):4} queries  {precision:24} {100 * found.mean():.2f}", flush=True)


def precisions(stored: StoredModel, folder: Path) -> dict[str, CDEModel]:
    """Return the model in each precision.

    Args:
        stored: Files of the model.
        folder: Folder for the quantized graph, as long as it is compiled.
    """
    graph = kept_graph(stored.digest, "second", stored.second_stage)
    quantized = quantize(stored, graph, folder)
    engines = {
        EXACT: (graph, EXACT),
        "bfloat16": (graph, "bfloat16"),
        "int8, rest float32": (quantized, EXACT),
        "int8, rest bfloat16": (quantized, "bfloat16"),
    }
    return {
        name: bound(stored, OpenVinoEngine(source, threads=1, dtype=dtype)) for name, (source, dtype) in engines.items()
    }


def bound(stored: StoredModel, graph: CompiledGraph) -> CDEModel:
    """Return a model whose second stage is a graph."""
    return CDEModel(OtherGraph(stored, graph), stored.tokenizer, stored.digest)


def quantize(stored: StoredModel, graph: Path | bytes, folder: Path) -> Path:
    """Write the second stage in int8; returns its file."""
    nncf: Any = require("nncf", "openvino")
    openvino: Any = require("openvino", "openvino")
    source = openvino.Core().read_model(str(graph) if isinstance(graph, Path) else graph)
    inputs = list(calibration(stored))
    model = nncf.quantize(
        source,
        nncf.Dataset(inputs),
        model_type=nncf.ModelType.TRANSFORMER,
        preset=nncf.QuantizationPreset.MIXED,
        subset_size=len(inputs),
    )
    openvino.save_model(model, str(folder / "int8.xml"), compress_to_fp16=False)
    return folder / "int8.xml"


def calibration(stored: StoredModel) -> Iterator[Inputs]:
    """Yield inputs of the second stage: a text as query, document and passage, with a context and without."""
    recorder = Recorder(stored.config.dim)
    model = bound(stored, recorder)
    texts, chance = generic_documents(None), np.random.default_rng(0)
    context = ContextualEmbedder.from_corpus(texts, model=model).context
    embedders = [ContextualEmbedder(model, each) for each in (context, Context.null(model))]
    for place in chance.permutation(len(texts))[:CALIBRATION]:
        embedder, text = embedders[chance.integers(2)], texts[place]
        match chance.integers(3):
            case 0:
                embedder.embed_queries([" ".join(text.split()[:12])])
            case 1:
                embedder.embed_passages([text], None)
            case _:
                embedder.embed_passages([text], [[texts[(place + step) % len(texts)] for step in range(1, 6)]])
    yield from recorder.inputs


def print_times(embedders: Mapping[str, ContextualEmbedder], texts: list[str]) -> None:
    """Print CPU time of a document of 256 tokens in a batch of 16, and of a query, in turn."""
    documents = [" ".join(texts[start : start + 20]) for start in range(16)]
    query = [" ".join(texts[0].split()[:12])]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in embedders}
    for _ in range(REPEATS):
        for name, embedder in embedders.items():
            start = time.process_time()
            embedder.embed_documents(documents)
            middle = time.process_time()
            for _ in range(len(documents)):
                embedder.embed_queries(query)
            times[name].append(((middle - start) / len(documents), (time.process_time() - middle) / len(documents)))
    for name, measured in times.items():
        document, one = (1e3 * median(column) for column in zip(*measured, strict=True))
        print(f"{name:24} {document:6.2f} ms a document, {one:5.2f} ms a query", flush=True)


if __name__ == "__main__":
    main()
