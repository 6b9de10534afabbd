"""Weights that change while a process has them mapped: the vectors stay those of the model, or there is an error."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny import tiny_network, tiny_tokenizer

from cde_rag.model import checkpoints

EMBEDS = """
import hashlib, sys

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import ModelError

model = CDEModel.from_pretrained(sys.argv[1], runtime=sys.argv[2])
embedder = ContextualEmbedder(model, Context.null(model))
for _ in sys.stdin:
    try:
        vectors = embedder.embed_documents(["river bank money", "the water of the river"])
        print(hashlib.sha256(vectors.round(3).tobytes()).hexdigest(), flush=True)
    except ModelError as error:
        print("ModelError" if "was written to" in str(error) else error, flush=True)
"""


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_no_vector_is_made_of_weights_that_changed(
    runtime: str,
    scratch: Path,
    seed: int,
    times: Callable[[int, int], int],
    tell: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file of the model or of its graph is replaced, removed, written into or cut; the process goes on embedding."""
    pytest.importorskip("openvino" if runtime == "openvino" else "onnxruntime")
    monkeypatch.setenv("XDG_CACHE_HOME", str(scratch / "cache"))
    dice, outcomes = random.Random(seed), dict.fromkeys(("same", "error", "ended"), 0)
    for number in range(times(2, 40)):
        folder, graphs = scratch / "model", scratch / "cache/cde-rag/graphs"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(graphs, ignore_errors=True)
        checkpoints.write(folder, tiny_network(), tiny_tokenizer())
        command = [sys.executable, "-W", "ignore", "-c", EMBEDS, str(folder), runtime]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None

            def vectors(process: "subprocess.Popen[str]" = process) -> str:
                assert process.stdin is not None
                assert process.stdout is not None
                try:
                    process.stdin.write("\n")
                    process.stdin.flush()
                except BrokenPipeError:
                    return ""
                return process.stdout.readline().strip()

            expected = vectors()
            assert len(expected) == 64
            files = [folder / "model.safetensors", *sorted(graphs.glob("*.weights"))]
            path, change = (
                (dice.choice(files), dice.choice(CHANGES)) if number >= len(CHANGES) else (files[0], CHANGES[number])
            )
            change(path, dice)
            found = [vectors(), vectors()]
            process.stdin.close()
            process.wait()
        assert set(found) <= {expected, "ModelError", ""}, f"{path.name} {change.__name__} {found}, seed {seed}"
        if path == files[0] and change in (replaced, removed):
            assert found == [expected, expected]
        outcomes["ended" if "" in found else "error" if "ModelError" in found else "same"] += 1
    tell(", ".join(f"{name} {count}" for name, count in outcomes.items()))


def replaced(path: Path, dice: random.Random) -> None:
    other = path.with_name("other")
    other.write_bytes(dice.randbytes(path.stat().st_size))
    other.replace(path)


def removed(path: Path, dice: random.Random) -> None:
    path.unlink()


def written_into(path: Path, dice: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 8)
        file.write(dice.randbytes(size - size // 8))


def cut(path: Path, dice: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 16)


CHANGES = (written_into, cut, replaced, removed)
