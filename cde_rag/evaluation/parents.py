"""Baselines for passages of longer documents: simple ways to add the parent's content to a plain embedder."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from cde_rag.context.siblings import siblings_by_position
from cde_rag.errors import require
from cde_rag.models.plain.corpus_map import unit

SIBLINGS_SHARE = 0.3  # weight of the siblings' mean next to the document's own vector; measured, see the design §4
LEAD_SHARE = 0.5  # weight of a parent's first passage; the better of 0.3 and 0.5 on four documentation sites
WINDOW = 512  # tokens that late chunking reads at once, special tokens included
_WINDOWS_AT_ONCE = 8


def mix_siblings(
    documents: Float32[np.ndarray, "documents dim"], parents: Sequence[str | None]
) -> Float32[np.ndarray, "documents dim"]:
    """Add 0.3 × the mean of its siblings' vectors to each document's vector, at unit norm."""
    mixed = documents.copy()
    for group in groups(parents):
        for place, row in enumerate(group):
            if siblings := [group[other] for other in siblings_by_position(place, len(group))]:
                mixed[row] += SIBLINGS_SHARE * documents[siblings].mean(axis=0)
    return unit(mixed)


def mix_lead(
    documents: Float32[np.ndarray, "documents dim"], parents: Sequence[str | None]
) -> Float32[np.ndarray, "documents dim"]:
    """Add 0.5 × the vector of its parent's first passage to each other passage's vector, at unit norm."""
    mixed = documents.copy()
    for lead, *others in groups(parents):
        mixed[others] += LEAD_SHARE * documents[lead]
    return unit(mixed)


def join_neighbours(texts: Sequence[str], parents: Sequence[str | None]) -> list[str]:
    """Append the text before and the text after it in its parent to each text; the embedder truncates at the end."""
    joined = list(texts)
    for group in groups(parents):
        for place, position in enumerate(group):
            around = [*group[max(place - 1, 0) : place], *group[place + 1 : place + 2]]
            joined[position] = " ".join(texts[other] for other in [position, *around])
    return joined


def late_chunking(model: Any, texts: Sequence[str], parents: Sequence[str | None]) -> Float32[np.ndarray, "texts dim"]:
    """Embed passages of one parent together, as many as fit in 512 tokens; each is the mean over its own tokens.

    Args:
        model: A SentenceTransformer that pools by the mean.
        texts: Passages; those of one parent in its order.
        parents: Parent of each text; a text without one is read alone.

    Returns:
        Vectors of unit norm.

    Source: Günther et al. (2024), without overlap between windows.
    """
    torch: Any = require("torch", "evaluation")
    tokens: list[list[int]] = model.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    spans = sorted(_windows(tokens, groups(parents)), key=lambda window: -sum(length for _, length in window))
    vectors = np.zeros((len(texts), model.get_embedding_dimension()), dtype=np.float32)
    first, last = model.tokenizer.cls_token_id, model.tokenizer.sep_token_id
    for start in range(0, len(spans), _WINDOWS_AT_ONCE):
        windows = spans[start : start + _WINDOWS_AT_ONCE]
        rows = [[first, *(token for at, length in window for token in tokens[at][:length]), last] for window in windows]
        padded = model.tokenizer.pad({"input_ids": rows}, return_tensors="pt").to(model.device)
        with torch.inference_mode():
            read = model[0](dict(padded))["token_embeddings"].float().cpu().numpy()
        for row, window in enumerate(windows):
            begin = 1
            for position, length in window:
                end = begin + length
                vectors[position] = read[row, begin:end].mean(axis=0) if length else read[row, 0]
                begin = end
    return unit(vectors)


def groups(parents: Sequence[str | None]) -> list[list[int]]:
    """Return the positions of the texts of each parent, in order; a text without a parent is a group of its own."""
    found: defaultdict[str | int, list[int]] = defaultdict(list)
    for position, parent in enumerate(parents):
        found[position if parent is None else parent].append(position)
    return list(found.values())


def _windows(tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield the positions of the passages that are read together, with the number of tokens of each."""
    for group in parents:
        window: list[tuple[int, int]] = []
        room = WINDOW - 2
        for position in group:
            length = min(len(tokens[position]), WINDOW - 2)
            if window and length > room:
                yield window
                window, room = [], WINDOW - 2
            window.append((position, length))
            room -= length
        yield window
