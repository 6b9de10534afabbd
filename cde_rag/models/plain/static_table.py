"""Static tables of sentence-transformers and model2vec: a vector for each token, averaged by NumPy alone.

Source: StaticEmbedding of sentence-transformers; model2vec, whose tables may map several tokens to one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from jaxtyping import Float32, Int64
from safetensors.numpy import load
from tokenizers import Tokenizer
from tqdm import tqdm

from cde_rag.errors import ModelError
from cde_rag.models.batching import length_buckets
from cde_rag.models.files.weights import WEIGHTS
from cde_rag.models.files.word_embeddings import WordEmbeddings
from cde_rag.models.plain.checkpoint import UNLIMITED, ModelFiles
from cde_rag.models.plain.config import read_prompts
from cde_rag.models.plain.corpus_map import unit
from cde_rag.models.plain.modules import Dense, Head, read_modules
from cde_rag.models.plain.settings import OtherArchitectureError, other_forms, stored_shapes
from cde_rag.models.plain.text_model import ReadText

TOKENIZER: Final = "tokenizer.json"
NAMES: Final = ("embedding.weight", "embeddings")  # of sentence-transformers, of model2vec
MAPPING, TOKEN_WEIGHTS = "mapping", "weights"  # of model2vec
_FUNCTIONS: Final = {"Identity": np.asarray, "Tanh": np.tanh}


@dataclass(frozen=True, eq=False)
class StaticTable:
    """A table of vectors, with the modules that follow it.

    Attributes:
        files: Files of the model.
        head: Work on the vectors of texts.
        tokenizer: Tokenizer; it cuts texts if its file says so.
        path: Path of the file of weights.
        name: Name of the table in it.
        rows: Row of each token id; None if it is the id.
        weights: Weight of each token id; None if all count the same.
    """

    files: ModelFiles
    head: Head
    tokenizer: Tokenizer
    path: str
    name: str
    rows: Int64[np.ndarray, " vocabulary"] | None
    weights: Float32[np.ndarray, " vocabulary"] | None

    @classmethod
    def read(cls, files: ModelFiles, role: str = "document") -> "StaticTable":
        """Read the table of a role's texts, but for its vectors.

        Args:
            files: Files of the model.
            role: "query" or "document".

        Raises:
            ModelError: A file was written meanwhile.
            OtherArchitectureError: It is no table, or one of another form; with what was found.
        """
        with other_forms():
            return cls._read(files, role)

    @classmethod
    def _read(cls, files: ModelFiles, role: str) -> "StaticTable":
        first, *modules = read_modules(files, role)
        if first.kind != "StaticEmbedding":
            raise OtherArchitectureError(f"the module {first.kind}")
        path = first.folder + WEIGHTS
        shapes = stored_shapes(files, path)
        name = next((name for name in NAMES if len(shapes.get(name, ())) == 2), None)
        if name is None:
            raise OtherArchitectureError(f"no table of floats in {path}")
        count, dim = shapes[name]
        stored: Mapping[str, Any] = {} if name == NAMES[0] else load(files.content(path))
        rows, weights = stored.get(MAPPING), stored.get(TOKEN_WEIGHTS)
        serialised = files.content(first.folder + TOKENIZER).decode()
        try:
            tokenizer = Tokenizer.from_str(serialised)
        except Exception as error:  # the library raises bare Exceptions
            raise OtherArchitectureError(f"no tokenizer in {first.folder}{TOKENIZER} ({error})") from error
        tokenizer.no_padding()
        limits = [count if rows is None else len(rows), *([] if weights is None else [len(weights)])]
        known = min(limits)
        if known <= max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1):
            raise OtherArchitectureError(f"a tokenizer of more tokens than the {known} of {path}")
        if rows is not None and not (int(rows.min()) >= 0 and int(rows.max()) < count):
            raise OtherArchitectureError(f"a {MAPPING} to other rows than the {count} of {path}")
        return cls(
            files,
            Head.read(files, modules, dim=dim, pooled=True),
            tokenizer,
            path,
            name,
            None if rows is None else rows.astype(np.int64),
            None if weights is None else weights.astype(np.float32),
        )


class TableTextModel:
    """A static table in NumPy, on the CPU; see `TextModel`. Thread-safe.

    Args:
        table: The table.
        max_length: None; a table reads texts of any length, unless its tokenizer cuts them.

    Raises:
        ModelError: Its file was removed or written meanwhile, or texts are to be cut.
    """

    runtime, device, dtype = "numpy", "cpu", "float32"
    max_length = UNLIMITED

    def __init__(self, table: StaticTable, *, max_length: int | None) -> None:
        if max_length is not None:
            raise ModelError(
                f"{table.files.name} reads texts of any length, found max_length {max_length}. Leave it out."
            )
        self._table = table
        self._vectors = WordEmbeddings([table.files.folder / table.path], table.name)
        self._dense = {step: table.head.linear(step) for step in table.head.steps if isinstance(step, Dense)}
        table.files.check_unchanged()
        self.has_offsets = True
        self.dim, self.prompts = table.head.dim, read_prompts(table.files)
        self.special_tokens = table.tokenizer.num_special_tokens_to_add(is_pair=False)

    def lengths(self, texts: Sequence[str], prefix: str) -> list[int]:
        """Count the tokens of each text, prefix and special tokens included."""
        given = [prefix + text for text in texts]
        return [len(encoding.ids) for encoding in self._table.tokenizer.encode_batch_fast(given)]

    def read(self, texts: Sequence[str], prefix: str) -> list[ReadText]:
        """Tokenize texts."""
        given = [prefix + text for text in texts]
        encodings = self._table.tokenizer.encode_batch_fast(given, add_special_tokens=False)
        return [ReadText(encoding.ids, 0, bool(encoding.overflowing)) for encoding in encodings]

    def reach(self, text: str, tokens: int) -> int:  # noqa: ARG002 (no text is cut)
        """Return the number of characters of a text."""
        return len(text)

    def embed(
        self,
        texts: Sequence[ReadText],
        *,
        role: str,  # noqa: ARG002 (a table has its own for each role)
        prefix: str,  # noqa: ARG002 (it is among the tokens that were read)
        batch_size: int,
        progress: bool,
    ) -> Float32[np.ndarray, "texts dim"]:
        """Embed texts; the vector of a text without tokens is 0 unless a linear layer follows."""
        rows = [cast("list[int]", text.content) for text in texts]
        vectors = np.empty((len(rows), self._table.head.dim), dtype=np.float32)
        with tqdm(total=len(rows), unit="text", disable=not progress) as bar:
            for bucket in length_buckets([len(row) for row in rows], batch_size):
                vectors[bucket] = self._headed(np.stack([self._mean(rows[place]) for place in bucket]))
                bar.update(len(bucket))
        return vectors

    def _mean(self, row: Sequence[int]) -> Float32[np.ndarray, " dim"]:
        """Return the mean of the vectors of tokens; 0 if there are none."""
        table = self._table
        ids, counts = np.unique(np.array(row, dtype=np.int64), return_counts=True)
        found = self._vectors((ids if table.rows is None else table.rows[ids])[None])[0]
        weights = counts if table.weights is None else counts * table.weights[ids]
        return (weights / max(len(row), 1)).astype(np.float32) @ found

    def _headed(self, vectors: Float32[np.ndarray, "texts inputs"]) -> Float32[np.ndarray, "texts dim"]:
        """Apply the modules after the table."""
        for step in self._table.head.steps:
            if isinstance(step, Dense):
                weight, bias = self._dense[step]
                product = vectors @ weight.T
                vectors = _FUNCTIONS[step.activation](product if bias is None else product + bias)
            else:
                vectors = unit(vectors)
        return vectors
