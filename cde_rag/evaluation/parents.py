"""What a user would try first with a plain embedder for passages of longer documents."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32

from cde_rag.context.siblings import siblings_by_position

SIBLINGS_SHARE = 0.3  # weight of the siblings' mean beside the document's own vector; measured, see the design §4
LEAD_SHARE = 0.5  # weight of a parent's first passage; the better of 0.3 and 0.5 on four documentation sites
WINDOW = 512  # tokens that late chunking reads at once, special tokens included
_WINDOWS_AT_ONCE = 8


def mix_siblings(
    documents: Float32[np.ndarray, "documents dim"], parents: Sequence[str | None]
) -> Float32[np.ndarray, "documents dim"]:
    """Each document's vector plus 0.3 × the mean of its siblings', at unit norm."""
    mixed = documents.copy()
    for group in groups(parents):
        for place, row in enumerate(group):
            if siblings := [group[other] for other in siblings_by_position(place, len(group))]:
                mixed[row] += SIBLINGS_SHARE * documents[siblings].mean(axis=0)
    return unit(mixed)


def mix_lead(
    documents: Float32[np.ndarray, "documents dim"], parents: Sequence[str | None]
) -> Float32[np.ndarray, "documents dim"]:
    """Each document's vector plus 0.5 × that of its parent's first passage, which stays itself; at unit norm."""
    mixed = documents.copy()
    for lead, *others in groups(parents):
        mixed[others] += LEAD_SHARE * documents[lead]
    return unit(mixed)


def join_neighbours(texts: Sequence[str], parents: Sequence[str | None]) -> list[str]:
    """Each text, then the text before it and the one after it in its parent; what is too long is cut at the end."""
    joined = list(texts)
    for group in groups(parents):
        for place, position in enumerate(group):
            around = [*group[max(place - 1, 0) : place], *group[place + 1 : place + 2]]
            joined[position] = " ".join(texts[other] for other in [position, *around])
    return joined


def late_chunking(model: Any, texts: Sequence[str], parents: Sequence[str | None]) -> Float32[np.ndarray, "texts dim"]:
    """Passages of one parent are read together, as many as fit in 512 tokens; each is the mean over its own tokens.

    Args:
        model: A SentenceTransformer that pools by the mean.
        texts: Of one parent in its order.
        parents: One for each text; a text without one is read alone.

    Returns:
        Unit norm.

    Source: Günther et al. (2024), without overlap between windows.
    """
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
    """Positions of the texts of each parent, in order; a text without a parent is alone."""
    found: defaultdict[str | int, list[int]] = defaultdict(list)
    for position, parent in enumerate(parents):
        found[position if parent is None else parent].append(position)
    return list(found.values())


def unit(vectors: Float32[np.ndarray, "rows dim"]) -> Float32[np.ndarray, "rows dim"]:
    """Each row divided by its length; rows of zeros stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def _windows(tokens: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Iterator[list[tuple[int, int]]]:
    """Positions of the passages that are read together, and how many tokens of each."""
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
