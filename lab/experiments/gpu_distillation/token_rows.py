"""Token ids of many texts on a GPU, and batches of texts of one role and similar length."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from cde_rag.models.batching import padded
from cde_rag.models.one_way.context_path import PreparedContext
from cde_rag.models.one_way.network import TwoStage
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.tokenizer import TextTokenizer

LENGTH: Final = 256  # tokens that teacher and student read
FIRST_LENGTH: Final = 128  # tokens that the first stage reads
GROUP_TOKENS: Final = 2**15 if torch.cuda.is_available() else 2**12  # of a forward pass with gradients

Siblings: TypeAlias = tuple[Float[Tensor, "chosen siblings dim"], Bool[Tensor, "chosen siblings"]]
"""First-stage vectors of each text's siblings, padded, and a mask that is True if there is a sibling."""


class FlatTokens:
    """Token ids of many texts, concatenated.

    Args:
        ids: Of all texts.
        starts: Position of each text's first id, and the end.

    Attributes:
        lengths: Number of tokens of each text.
    """

    def __init__(self, ids: Int[Tensor, " tokens"], starts: Int64[np.ndarray, " ends"]) -> None:
        self.ids, self.starts = ids, starts
        self.lengths: Int64[np.ndarray, " texts"] = np.diff(starts)

    def gather(self, chosen: Int64[np.ndarray, " chosen"], most: int = LENGTH) -> tuple[Tensor, Tensor]:
        """Return padded ids and mask of some texts; a cut text keeps its separator."""
        lengths = np.minimum(self.lengths[chosen], most)
        width = min(most, -(-int(lengths.max()) // 16) * 16)
        device = self.ids.device
        both = torch.from_numpy(np.stack([self.starts[chosen], self.starts[chosen + 1] - 1, lengths])).to(device)
        start, last, length = both[:, :, None]
        places = torch.arange(width, device=device)[None]
        mask = places < length
        where = torch.where(places == length - 1, last, start + places)
        return self.ids[where.where(mask, 0)].where(mask, 0).long(), mask


def groups(
    chosen: Int64[np.ndarray, " chosen"],
    roles: Int64[np.ndarray, " texts"],
    lengths: Int64[np.ndarray, " texts"],
    tokens: int,
) -> Iterator[tuple[int, Int64[np.ndarray, " group"]]]:
    """Yield role and places in `chosen` of groups of one role and similar length, of at most so many tokens."""
    for role in (QUERY, DOCUMENT):
        places = np.flatnonzero(roles[chosen] == role)
        places = places[np.argsort(-lengths[chosen[places]], kind="stable")]
        while len(places):
            size = max(1, tokens // int(lengths[chosen[places[0]]]))
            # A group also ends where its texts have half the length of its first, so that little is padding.
            short = int((lengths[chosen[places[:size]]] * 2 >= lengths[chosen[places[0]]]).sum())
            size = max(min(size, short), min(size, 128))
            yield role, places[:size]
            places = places[size:]


def autocast(device: str, dtype: torch.dtype) -> torch.autocast:
    """Return the precision of the encoders' matrix products."""
    return torch.autocast(torch.device(device).type, dtype=dtype if device == "cuda" else torch.bfloat16)


def null_context(network: TwoStage) -> PreparedContext:
    """Prepare the null context."""
    device = network.embeddings.word.weight.device
    empty = torch.zeros(0, network.config.dim, device=device)
    with torch.autocast(device.type, enabled=False):
        return network.prepare(empty, torch.zeros(0, dtype=torch.long, device=device))


def embed(
    network: TwoStage,
    rows: FlatTokens,
    chosen: Int64[np.ndarray, " chosen"],
    roles: Int64[np.ndarray, " texts"],
    prepared: PreparedContext,
    tokens: int = GROUP_TOKENS,
    siblings: Siblings | None = None,
) -> Float[Tensor, "chosen dim"]:
    """Embed texts, group by group."""

    def of_group(role: int, places: Int64[np.ndarray, " group"]) -> Tensor:
        where = torch.from_numpy(places).to(rows.ids.device)
        given = (None, None) if siblings is None or role == QUERY else (siblings[0][where], siblings[1][where])
        return network.second_stage(network.embeddings, *rows.gather(chosen[places]), role, prepared, *given)

    return in_groups(chosen, roles, rows.lengths, tokens, of_group)


def embed_all(
    network: TwoStage, rows: FlatTokens, role: int, prepared: PreparedContext, siblings: Siblings | None = None
) -> Float[Tensor, "texts dim"]:
    """Embed all texts in one role, in bf16, without gradients."""
    places = np.arange(len(rows.lengths))
    with torch.no_grad(), autocast(rows.ids.device.type, torch.bfloat16):
        return embed(network, rows, places, np.full(len(places), role), prepared, 4 * GROUP_TOKENS, siblings)


def first_vectors(
    network: TwoStage, rows: FlatTokens, chosen: Int64[np.ndarray, " chosen"]
) -> Float[Tensor, "chosen dim"]:
    """Embed texts with the first stage."""
    lengths = np.minimum(rows.lengths[chosen], FIRST_LENGTH)

    def of_group(_: int, places: Int64[np.ndarray, " group"]) -> Tensor:
        return network.first_stage(network.embeddings, *rows.gather(chosen[places], FIRST_LENGTH))

    places = np.arange(len(chosen))
    return in_groups(places, np.full(len(chosen), DOCUMENT), lengths, 4 * GROUP_TOKENS, of_group)


def in_groups(
    chosen: Int64[np.ndarray, " chosen"],
    roles: Int64[np.ndarray, " texts"],
    lengths: Int64[np.ndarray, " texts"],
    tokens: int,
    of_group: Callable[[int, Int64[np.ndarray, " group"]], Tensor],
) -> Float[Tensor, "chosen dim"]:
    """Embed the groups of `groups`; return the embeddings in the order of `chosen`."""
    parts = [(places, of_group(role, places)) for role, places in groups(chosen, roles, lengths, tokens)]
    order = np.argsort(np.concatenate([places for places, _ in parts]))
    vectors = torch.cat([each for _, each in parts])
    return vectors[torch.from_numpy(order).to(vectors.device)]


def siblings_of(vectors: Float[Tensor, "documents dim"], rows: Sequence[Sequence[int]]) -> Siblings | None:
    """Look up first-stage vectors of each text's siblings, padded, and their mask; None if no text has any."""
    if not any(map(len, rows)):
        return None
    ids, mask = (torch.from_numpy(each).to(vectors.device) for each in padded(rows))
    return vectors[ids] * mask[:, :, None], mask


_TOKENIZER: TextTokenizer | None = None  # of a process


def _start_tokenizer(serialised: str) -> None:
    global _TOKENIZER
    _TOKENIZER = TextTokenizer(serialised)


def _tokenize(texts: list[str]) -> tuple[np.ndarray, list[int]]:
    assert _TOKENIZER is not None
    found = [tokens.ids for tokens in _TOKENIZER(texts, LENGTH)]
    return np.array([token for ids in found for token in ids], dtype=np.int32), list(map(len, found))


def tokenized(texts: Sequence[str], serialised: str, processes: int, device: str) -> FlatTokens:
    """Tokenize texts, many of them in several processes."""
    parts = [list(texts[start : start + 4096]) for start in range(0, len(texts), 4096)]
    if len(parts) < 8:
        _start_tokenizer(serialised)
        found = list(map(_tokenize, parts))
    else:
        with multiprocessing.get_context("fork").Pool(processes, _start_tokenizer, (serialised,)) as workers:
            found = list(workers.imap(_tokenize, parts))
    starts = np.concatenate([[0], np.cumsum([length for _, lengths in found for length in lengths])])
    return FlatTokens(torch.from_numpy(np.concatenate([ids for ids, _ in found])).to(device), starts)
