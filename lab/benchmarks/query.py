"""What a context costs a query: one query at a time, given a context and with the same layers without one.

Run with: python lab/benchmarks/query.py [--model MODEL] [--json]
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
import torch.nn.functional as F

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.models.one_way.attention import mean_pool
from cde_rag.models.runtimes.stage_runner import QUERY
from cde_rag.models.runtimes.torch_runner import DTYPES, pad
from lab.python_docs import documentation

WORDS = "how do I read a large file line by line without keeping all of it in memory when it is compressed with gzip"


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(name: str, dtype: str, tokens: int, rounds: int) -> dict[str, float | str]:
    """Medians over interleaved rounds, in milliseconds, and the median of the rounds' ratios."""
    model = CDEModel.from_pretrained(name, device="cpu", dtype=dtype, runtime="torch")
    texts = [record.text for record, _ in zip(documentation(), range(2000), strict=False)]
    embedder = ContextualEmbedder.from_corpus(texts, model=model)
    words = WORDS.split() * tokens
    query = next(
        text
        for text in (" ".join(words[:count]) for count in range(1, len(words)))
        if len(model.tokenize([text])[0].ids) == tokens
    )
    network = model.network

    def plain() -> object:
        ids, _ = pad([row.ids for row in model.tokenize([query])])
        with torch.inference_mode():
            x = network.embeddings(ids, network.second_stage.roles[QUERY]).to(DTYPES[dtype])
            for layer in network.second_stage.layers:
                x = layer(x, None)
            return F.normalize(mean_pool(x, None), dim=-1).numpy()

    def contextual() -> object:
        return embedder.embed_queries([query])

    for _ in range(20):
        plain(), contextual()
    pairs = [(seconds(contextual), seconds(plain)) for _ in range(rounds)]
    return {
        "dtype": dtype,
        "contextual_ms": 1e3 * median(one for one, _ in pairs),
        "plain_ms": 1e3 * median(two for _, two in pairs),
        "ratio": median(one / two for one, two in pairs),
    }


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="cde-mini", help="bundled name or folder, one-way")
    parser.add_argument("--tokens", type=int, default=32, help="of the query, special tokens included")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(options.model, dtype, options.tokens, options.rounds) for dtype in ("float32", "bfloat16")]
    if options.json:
        print(json.dumps({"threads": torch.get_num_threads(), "tokens": options.tokens, "rows": rows}, indent=2))
        return
    print(f"one query of {options.tokens} tokens, {torch.get_num_threads()} threads")
    for row in rows:
        print(
            f"{row['dtype']:>9}  given a context {row['contextual_ms']:6.2f} ms  without {row['plain_ms']:6.2f} ms  "
            f"ratio {row['ratio']:.3f}"
        )


if __name__ == "__main__":
    main()
