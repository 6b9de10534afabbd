"""Vector spaces of runtimes: cosines of 1 000 texts to torch in float32, and NDCG@10 × 100 by runtime.

Run with: python -m lab.benchmarks.same_space [--data FOLDER]   (the folder has retrieval sets, for NDCG)
"""

import argparse
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import CDEWarning
from cde_rag.evaluation.beir import read_beir
from cde_rag.models.runtimes import runtime_choice
from lab.benchmarks.headers import SITES
from lab.benchmarks.late_chunking import cut
from lab.benchmarks.windows import scores
from lab.python_docs import documentation


def main() -> None:
    """Print a line for each runtime, then for each set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", CDEWarning)
    texts = [record.text for record in islice(documentation(), 0, 3000, 3)]
    context = ContextualEmbedder.from_corpus(texts, model=CDEModel.from_pretrained(runtime="torch")).context
    reference: np.ndarray | None = None
    for name, embedder in embedders(context):
        vectors = embedder.embed_documents(texts)
        reference = vectors if reference is None else reference
        cosines = (vectors * reference).sum(axis=1)
        print(
            f"{name:20} worst of {len(texts)}: {cosines.min():.6f}  hundredth: {np.quantile(cosines, 0.01):.6f}",
            flush=True,
        )
    for site in SITES if options.data is not None else ():
        data = cut(read_beir(options.data / site, parent_key="parent"))
        own = ContextualEmbedder.from_corpus(data.corpus.texts, model=CDEModel.from_pretrained(runtime="torch")).context
        for name, embedder in embedders(own):
            documents = embedder.embed_documents(data.corpus.texts, parents=data.corpus.parents)
            found = scores(data, embedder.embed_queries(data.queries) @ documents.T, range(len(documents)))
            print(f"{site:20} {name:20} {100 * found.mean():.2f}", flush=True)


def embedders(context: Context) -> Iterator[tuple[str, ContextualEmbedder]]:
    """Yield the embedder of each runtime that is installed, torch in float32 first."""
    for runtime, dtype in runtime_choice.candidates():
        model = CDEModel.from_pretrained(runtime=runtime, dtype=dtype, device="cpu")
        yield f"{runtime} {dtype}", ContextualEmbedder(model, context)


if __name__ == "__main__":
    main()
