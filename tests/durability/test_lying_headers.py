"""Safetensors files whose header lies about shapes, places or types: a typed error, in little memory.

The header is a JSON object in front of the tensors' bytes; whoever can write the file can write it, with its length.
"""

import copy
import hashlib
import json
import random
import resource
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lives import stub
from tiny import tiny_tokenizer

from cde_rag.context.context import Context
from cde_rag.errors import ContextFormatError, ModelError
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints

NUMBERS = (0, 1, -1, 2**31, 2**40, 2**63, 2**64, 10**30, 1.5, None, "1", [], True)


def split(data: bytes) -> tuple[dict[str, Any], bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def joined(header: Any, body: bytes) -> bytes:
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + body


def lie(header: dict[str, Any], dice: random.Random) -> dict[str, Any]:
    """The header with one thing of one tensor changed."""
    told = copy.deepcopy(header)
    name = dice.choice([each for each in told if each != "__metadata__"])
    match dice.randrange(6):
        case 0:
            told[name]["shape"][dice.randrange(len(told[name]["shape"]))] = dice.choice(NUMBERS)
        case 1:
            told[name]["shape"] = dice.choice([[], None, [0], [2**40, 2**40], "x", [*told[name]["shape"], 2]])
        case 2:
            told[name]["data_offsets"][dice.randrange(2)] = dice.choice(NUMBERS)
        case 3:
            told[name]["dtype"] = dice.choice(["F64", "I8", "BF16", "F8_E4M3", "X", None, 4])
        case 4:
            del told[name][dice.choice(list(told[name]))]
        case _:
            told[dice.choice(["other", "../other", ""])] = told.pop(name)
    return told


def test_a_context_that_lies_is_refused(
    seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    dice, data, tried = random.Random(seed), stub(0).context.to_bytes(), 0
    header, body = split(data)
    for _ in range(times(200, 5000)):
        told = lie(header, dice)
        if told == header:
            continue
        tracemalloc.start()
        with pytest.raises(ContextFormatError):
            Context.from_bytes(joined(told, body), where="here")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2**22, told
        tried += 1
    tell(f"{tried} headers of a context, all refused")


def test_a_model_that_lies_is_refused(
    tiny_model: CDEModel, scratch: Path, seed: int, times: Callable[[int, int], int], tell: Callable[[str], None]
) -> None:
    """Also where `config.json` names the digest of the file that lies; or it loads, and gives numbers."""
    checkpoints.write(scratch / "model", tiny_model.network, tiny_tokenizer())
    weights, config = scratch / "model/model.safetensors", scratch / "model/config.json"
    dice, refused = random.Random(seed), 0
    header, body = split(weights.read_bytes())
    for _ in range(times(60, 1000)):
        told = joined(lie(header, dice), body)
        weights.write_bytes(told)
        digest = hashlib.sha256(told).hexdigest()
        config.write_text(json.dumps(json.loads(config.read_text()) | {"weights_sha256": digest}))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            model = CDEModel.from_pretrained(scratch / "model")
        except ModelError:
            refused += 1
        else:
            assert np.isfinite(model.first_stage(["a text"])).all()
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18  # KiB
    assert refused
    tell(f"{refused} headers of a model refused")
