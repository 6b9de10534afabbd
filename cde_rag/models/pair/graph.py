"""Stages of a pair run as ONNX graphs, without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from cde_rag.errors import ModelError
from cde_rag.models.files.model_files import TOKENIZER, check_first_half, checked, digest, first_half, read_header
from cde_rag.models.files.word_embeddings import Text, WordEmbeddings, embedded
from cde_rag.models.one_way import graph as stage_graphs
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.one_way.graph_runner import GraphRunner, StoredModel
from cde_rag.models.pair.config import PairConfig
from cde_rag.models.pair.tokenizer import PairTokenizer

FIRST: Final = "first."  # names of the weights of the first half begin so
SECOND: Final = "second."
SECOND_TEXT: Final = ("second_words", "second_mask")  # inputs of the second half


class StoredPair(StoredModel):
    """Config, tokenizer and files of a pair and of its first half."""

    of_first = FIRST

    @classmethod
    def read(cls, folder: Path) -> "StoredPair":
        """Read a pair's folder and that of its first half, but for their weights.

        Raises:
            ModelError: A file is missing, damaged or of a newer format, or the first half is another one.
        """
        header = read_header(folder)
        serialised = checked(folder / TOKENIZER, header.tokenizer_sha256).decode()
        config = PairConfig.from_json(header.config)
        first = StoredModel.read(first_half(config.name, config.first))
        check_first_half(config.name, config.first, expected=config.first_sha256, found=first.digest)
        if config.dim != first.first.dim + config.second_dim:
            raise ModelError(
                f"The config's dim has to be {first.first.dim} + {config.second_dim}, its halves'; found {config.dim}."
            )
        tokenizer = PairTokenizer(first.tokenizer, first.first.vocab_size, serialised)
        files = {"": header.weights(folder), FIRST: first.files[""]}
        return cls(config, first.first, tokenizer, digest(config, header.all_weights_sha256), first.digest, files)

    def word_embeddings(self) -> list[WordEmbeddings]:
        """Map the word embeddings of both halves into memory."""
        own = WordEmbeddings([path for path, _ in self.files[""]], SECOND + stage_graphs.WORDS)
        return [*super().word_embeddings(), own]

    def second_stage(self) -> bytes:
        """Build the graph of the second stage."""
        return pair_graph(self.config, self.first, self.complete())


class PairGraphRunner(GraphRunner):
    """Both stages of a pair as compiled graphs; see `GraphRunner`."""

    names = (*stage_graphs.TEXT, *SECOND_TEXT)

    def texts(self, rows: Sequence[Sequence[int]]) -> list[Text]:
        """Return the graphs' inputs of texts, for each half."""
        sizes, start = self.stored.first, self.stored.first.vocab_size
        first = [[each for each in row if each < start] for row in rows]
        second = [[each - start for each in row if each >= start] for row in rows]
        own, other = self.words
        return [
            embedded(own, first, sizes.max_positions),
            embedded(other, second, self.config.second.max_positions),
        ]


def pair_graph(config: PairConfig, first: ModelConfig, state: stage_graphs.State) -> bytes:
    """Build the graph of a pair's second stage; as `second_stage_graph`, with the inputs `SECOND_TEXT` besides.

    Args:
        config: Sizes of the pair.
        first: Sizes of its first half.
        state: Weights by the names of `PairNetwork`, float32.

    Raises:
        MissingExtraError: `onnx` is not installed.
    """
    graph = stage_graphs.Graph()
    words, mask = graph.text(stage_graphs.TEXT, first.dim)
    one = stage_graphs.second_stage(graph, first, stage_graphs.part(state, "first."), words, mask)
    second_words, second_mask = graph.text(SECOND_TEXT, config.second.dim, "second_")
    x = stage_graphs.encoded(graph, config.second, stage_graphs.part(state, "second."), second_words, second_mask)
    other = graph.unit(graph.mean(x, second_mask))
    weights = (1 - config.second_share) ** 0.5, config.second_share**0.5
    halves = [
        graph.op("Mul", half, graph.constant(np.float32(weight)))
        for half, weight in zip((one, other), weights, strict=True)
    ]
    both = graph.op("Concat", *halves, attributes={"axis": 1})
    turned = graph.op("MatMul", both, graph.constant(state["rotation"]))
    return graph.finish(graph.unit(turned), "batch", config.dim)
