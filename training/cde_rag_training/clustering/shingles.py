"""Near-duplicate texts by their words: candidates by MinHash, verified by the exact Jaccard index."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt32, UInt64

from cde_rag.errors import require

BANDS, ROWS = 42, 3  # a pair of texts with Jaccard 0.5 shares a band with probability 1 − (1 − 0.5³)⁴² = 0.996
DOUBT = 0.18  # of an estimate by 126 hashes: four standard deviations at Jaccard 0.5
BLOCK = 1 << 16  # candidates verified at a time: their numbers have 16 bits
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying modulo 2⁶⁴ loses nothing


@dataclass(frozen=True)
class Shingled:
    """Texts as sets of their n-grams of words, and the MinHash signatures of these sets.

    Attributes:
        starts: Where the n-grams of each text start, and the end of the last.
        shingles: 64 bits of each different n-gram of a text, ascending; 48 are compared (chance: one in 10¹⁴).
        signatures: MinHash; two texts agree in about as great a share of them as their Jaccard index.
    """

    starts: Int64[np.ndarray, " texts_and_end"]
    shingles: UInt64[np.ndarray, " shingles"]
    signatures: UInt32[np.ndarray, "texts hashes"]


def shingled(texts: Sequence[str], *, words: int) -> Shingled:
    """Extract the word n-grams of texts, lower case; a text with fewer words is one n-gram.

    Args:
        texts: In a language that puts white space between words; others are one word and equal only themselves.
        words: Number of words of an n-gram.

    Raises:
        MissingExtraError: datasketch is not installed.

    Source: Lee et al. 2022 §4.2 and appendix A (5-grams of space-delimited words).
    """
    sets = [_shingles(text.lower().split(), words) for text in texts]
    lengths = np.array([len(one) for one in sets], dtype=np.int64)
    datasketch: Any = require("datasketch", "train")
    lists = ((one & np.uint64(0xFFFFFFFF)).tolist() for one in sets)
    minhashes = datasketch.MinHash.generator(lists, num_perm=BANDS * ROWS, hashfunc=int)
    signatures = np.zeros((len(sets), BANDS * ROWS), dtype=np.uint32)
    for row, minhash in enumerate(minhashes):
        signatures[row] = minhash.hashvalues
    return Shingled(
        np.concatenate([np.zeros(1, dtype=np.int64), lengths.cumsum()]),
        np.concatenate([np.zeros(0, dtype=np.uint64), *sets]),
        signatures,
    )


def alike(
    one: Shingled, other: Shingled, *, jaccard: float
) -> tuple[Int64[np.ndarray, "found 2"], Float64[np.ndarray, " found"]]:
    """Find pairs of texts whose sets of n-grams have at least this Jaccard index.

    MinHash finds candidates and misses one in 250 at Jaccard 0.5, none far above; each is verified.

    Args:
        one: Texts.
        other: Texts; the same object again for pairs inside one list, each of which is found once, earlier text first.
        jaccard: From which two texts are alike, 0.5 or more.

    Returns:
        (row in one, row in other), ascending, and their Jaccard index.

    Source: Lee et al. 2022 appendix A.
    """
    known = [np.zeros(0, dtype=np.int64)]  # candidates, both rows as one number
    for band in range(BANDS):
        rows = _joined(_band(one, band), _band(other, band))
        if one is other:
            rows = rows[rows[:, 0] < rows[:, 1]]
        rows = rows[_estimated(one, other, rows) >= jaccard - DOUBT]
        known.append(rows[:, 0] * len(other.signatures) + rows[:, 1])
    found = np.stack(np.divmod(_distinct(np.concatenate(known)), max(len(other.signatures), 1)), axis=1)
    parts = [_jaccard(one, other, found[start : start + BLOCK]) for start in range(0, len(found), BLOCK)]
    scores = np.concatenate([np.zeros(0), *parts])
    return found[scores >= jaccard], scores[scores >= jaccard]


def _shingles(words: Sequence[str], size: int) -> UInt64[np.ndarray, " shingles"]:
    hashes = np.array([_hash(word) for word in words], dtype=np.uint64)
    count = max(len(hashes) - size + 1, 1)
    mixed = np.zeros(count, dtype=np.uint64)
    for place in range(min(size, len(hashes))):
        mixed = (mixed ^ hashes[place : place + count]) * MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
    return _distinct(mixed)


def _distinct(numbers: np.ndarray) -> np.ndarray:
    """Return distinct numbers, ascending; faster than `np.unique`, which hashes and takes eight times as long."""
    numbers = np.sort(numbers)
    return numbers[np.concatenate([[True], numbers[1:] != numbers[:-1]])] if len(numbers) else numbers


@lru_cache(maxsize=1 << 20)
def _hash(word: str) -> int:
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


def _band(texts: Shingled, band: int) -> UInt64[np.ndarray, " texts"]:
    """Combine the hashes of a band into one number; texts that agree in the hashes agree in it."""
    hashes = texts.signatures[:, band * ROWS : (band + 1) * ROWS].astype(np.uint64)
    return (hashes * MULTIPLIER ** np.arange(1, ROWS + 1, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


def _joined(one: UInt64[np.ndarray, " texts"], other: UInt64[np.ndarray, " others"]) -> Int64[np.ndarray, "found 2"]:
    """Return the pairs of positions (in one, in other) with equal numbers."""
    order = np.argsort(other, kind="stable")
    low, high = (np.searchsorted(other[order], one, side=side) for side in ("left", "right"))
    first, place = _expanded(high - low)
    return np.stack([first, order[low[first] + place]], axis=1)


def _expanded(lengths: Int64[np.ndarray, " rows"]) -> tuple[Int64[np.ndarray, " items"], Int64[np.ndarray, " items"]]:
    """Return the row of each item, and its position in that row, for rows of these lengths."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows, np.arange(len(rows)) - np.repeat(lengths.cumsum() - lengths, lengths)


def _estimated(one: Shingled, other: Shingled, found: Int64[np.ndarray, "found 2"]) -> Float32[np.ndarray, " found"]:
    """Return the share of equal hashes of pairs of texts."""
    parts = [np.zeros(0, dtype=np.float32)]
    for start in range(0, len(found), BLOCK):
        rows = found[start : start + BLOCK]
        same = one.signatures[rows[:, 0]] == other.signatures[rows[:, 1]]
        parts.append(same.mean(axis=1, dtype=np.float32))
    return np.concatenate(parts)


def _jaccard(one: Shingled, other: Shingled, found: Int64[np.ndarray, "found 2"]) -> Float64[np.ndarray, " found"]:
    """Compute the exact Jaccard index of pairs of texts."""
    sides = []
    for texts, rows in ((one, found[:, 0]), (other, found[:, 1])):
        pair, place = _expanded(np.diff(texts.starts)[rows])
        sides.append((pair, texts.shingles[texts.starts[rows][pair] + place]))
    # A pair's number and 48 bits of an n-gram are one number, which stands twice where both texts have the n-gram.
    names = [pair.astype(np.uint64) << np.uint64(48) | shingles >> np.uint64(16) for pair, shingles in sides]
    both = np.sort(np.concatenate(names))
    shared = np.bincount((both[1:][both[1:] == both[:-1]] >> np.uint64(48)).astype(np.int64), minlength=len(found))
    return shared / (sum(np.bincount(pair, minlength=len(found)) for pair, _ in sides) - shared)
