"""Sampling of a corpus: the documents of its context.

Every strategy ranks unique texts by a salted hash and keeps the lowest, so a sample depends on the set of texts and on
the seed, never on an order. A smaller sample of `sample_random` or `sample_strata` is part of every larger one.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappush, heapreplace
from itertools import zip_longest
from typing import Literal, TypeAlias

import numpy as np
from jaxtyping import Float32

from cde_rag._validation import check_list, check_positive, check_str, check_whole, utf8
from cde_rag.errors import CorpusError, SmallContextWarning, warn_user

Strategy: TypeAlias = Literal["random", "clusters"]
"""Sampling of a corpus: uniform, or one document near each of as many centroids."""

Unit: TypeAlias = Literal["document", "passage"]
"""Name of a text of the corpus in messages."""

SMALL_CONTEXT = 64  # documents; fewer do not show the common features of a corpus
POOL = 16  # documents embedded for each cluster that `sample_clusters` makes
ROUNDS = 10  # of k-means; the sample changes little after that


@dataclass(frozen=True, slots=True)
class Sample:
    """The context documents of a corpus.

    Attributes:
        documents: Unique texts, in an order that depends on the seed alone.
        documents_seen: Texts of the corpus that were not blank, repeated ones included.
    """

    documents: list[str]
    documents_seen: int


class _Lowest:
    """The `size` unique texts of lowest hash among those offered (bottom-k sampling, Cohen and Kaplan 2007)."""

    def __init__(self, size: int, salt: bytes) -> None:
        self.size = size
        self.salt = salt
        self.heap: list[tuple[int, str]] = []  # (-hash, text): the highest hash comes out first
        self.hashes: set[int] = set()

    def offer(self, text: str, data: bytes) -> None:
        rank = _hash(data, self.salt)
        if rank in self.hashes:
            return
        if len(self.heap) < self.size:
            heappush(self.heap, (-rank, text))
        elif rank < -self.heap[0][0]:
            self.hashes.remove(-heapreplace(self.heap, (-rank, text))[0])
        else:
            return
        self.hashes.add(rank)

    def texts(self) -> list[str]:
        """Return the texts, lowest hash first."""
        return [text for _, text in sorted(self.heap, reverse=True)]


def sample_random(texts: Iterable[str], size: int, *, seed: int) -> Sample:
    """Draw `size` texts, each set of unique texts equally likely. Reads a stream in the memory of `size` texts.

    Args:
        texts: The corpus; blank texts are skipped. A corpus with fewer unique texts is taken completely.
        size: Context documents wanted.
        seed: Random seed.

    Raises:
        CorpusError: No text, or one with a lone surrogate.
        TypeError: One `str` instead of texts.

    Source: paper §5, the corpus's context is a random sample.
    """
    lowest, seen = _Lowest(check_positive(size, "size"), _salt(seed)), 0
    for text, data in _not_blank(texts, call="from_corpus"):
        lowest.offer(text, data)
        seen += 1
    return _sample(lowest.texts(), seen)


def merge_samples(samples: Iterable[Sample], size: int, *, seed: int) -> Sample:
    """Merge the samples of a corpus's parts into the sample that `sample_random` draws from the complete corpus.

    Args:
        samples: One of each part, drawn by `sample_random` with this size and seed.
        size: Context documents wanted.
        seed: Random seed of the samples.

    Raises:
        CorpusError: No sample.
    """
    lowest, seen = _Lowest(check_positive(size, "size"), _salt(seed)), 0
    for sample in samples:
        seen += sample.documents_seen
        for text, data in _not_blank(sample.documents, call="from_corpus"):
            lowest.offer(text, data)
    return _sample(lowest.texts(), seen)


def sample_strata(texts: Iterable[str], strata: Iterable[str], size: int, *, seed: int) -> Sample:
    """Draw `size` texts, from each stratum in proportion to its texts.

    Inside a stratum of n texts the text of rank r (by hash) stands at (r + u) / n, with u drawn once for the stratum;
    the texts that stand lowest are taken. So a stratum's share is met to about one text, and a stratum whose share is
    less than one text is met with the right chance. Memory: up to `size` texts of each stratum.

    Args:
        texts: The corpus; blank texts are skipped.
        strata: The stratum of each text, in the same order.
        size: Context documents wanted.
        seed: Random seed.

    Raises:
        CorpusError: No text, one with a lone surrogate, or more or fewer strata than texts.
        TypeError: One `str` instead of texts or of strata.
    """
    check_list(texts, call="from_corpus")
    check_list(strata, call="from_corpus", what="strata")
    size = check_positive(size, "size")
    lowest: dict[str, _Lowest] = {}
    counts: Counter[str] = Counter()
    for position, (text, stratum) in enumerate(zip_longest(texts, strata)):
        if text is None or stratum is None:
            raise CorpusError(
                f"texts and strata end at different positions ({position} is the first without its other)."
            )
        for _, data in _not_blank([text], call="from_corpus", first=position):
            counts[stratum] += 1
            lowest.setdefault(stratum, _Lowest(size, _salt(seed))).offer(text, data)
    places: list[tuple[float, str]] = []
    for stratum, kept in lowest.items():
        start = _hash(utf8(stratum, where=f"stratum {stratum!a}"), _salt(seed)) / 2**128
        places += [((rank + start) / counts[stratum], text) for rank, text in enumerate(kept.texts())]
    documents = list(dict.fromkeys(text for _, text in sorted(places)))  # a text of two strata is taken once
    return _sample(documents[:size], counts.total())


def sample_clusters(
    texts: Iterable[str],
    size: int,
    *,
    seed: int,
    embed: Callable[[list[str]], Float32[np.ndarray, "documents dim"]],
) -> Sample:
    """Draw one text near each of `size` centroids of the corpus: rare subjects get the same weight as common ones.

    A random sample of 16 texts for each centroid is embedded and clustered with spherical k-means. Machines that round
    differently may settle ties differently.

    Args:
        texts: The corpus; blank texts are skipped. A corpus with fewer unique texts is taken completely, not embedded.
        size: Context documents wanted.
        seed: Random seed.
        embed: Unit vectors of texts; called once.

    Raises:
        CorpusError: No text, or one with a lone surrogate.
        TypeError: One `str` instead of texts.
    """
    pool = sample_random(texts, check_positive(size, "size") * POOL, seed=seed)
    if len(pool.documents) <= size:
        return pool
    vectors = embed(pool.documents)  # (pool, dim)
    scores = vectors @ _centroids(vectors, size, seed).T  # (pool, size)
    chosen: list[int] = []
    for cluster in range(size):
        nearest = int(np.argmax(scores[:, cluster]))
        chosen.append(nearest)
        scores[nearest] = -np.inf  # a text stands for one centroid
    return Sample([pool.documents[i] for i in sorted(chosen)], pool.documents_seen)


def warn_small_context(found: int, asked: int, unit: Unit = "document") -> None:
    """Warn, for a caller's caller, of a sample that is smaller than 64 documents because the corpus is.

    Args:
        found: Number of documents in the sample.
        asked: Number of context documents wanted.
        unit: Name of a text of the corpus: passages are those of a collection.
    """
    if found < min(SMALL_CONTEXT, asked):
        few = f"one {unit}" if found == 1 else f"{found} different {unit}s"
        move = "cde-rag recontextualize COLLECTION, or in Python collection.recontextualize()"
        new = move if unit == "passage" else f"ContextualEmbedder.from_corpus(texts); or, of a collection, {move}"
        warn_user(
            f"The context has only {few}, too few to show the common features of a corpus. When there are "
            f"{SMALL_CONTEXT} or more, make a larger one: {new}.",
            SmallContextWarning,
        )


def _centroids(vectors: Float32[np.ndarray, "documents dim"], size: int, seed: int) -> Float32[np.ndarray, "size dim"]:
    """Compute spherical k-means from a k-means++ start; a cluster that loses all its documents keeps its centroid.

    Source: Arthur and Vassilvitskii 2007; half the squared distance of unit vectors is 1 - cosine.
    """
    random = np.random.default_rng(seed)
    starts = [0]  # the documents already stand in random order
    distances = np.full(len(vectors), np.inf)
    while len(starts) < size:
        distances = np.minimum(distances, 1 - vectors @ vectors[starts[-1]]).clip(min=1e-12)  # (documents,)
        starts.append(int(random.choice(len(vectors), p=distances / distances.sum())))
    centroids = vectors[starts]
    for _ in range(ROUNDS):
        nearest = np.argmax(vectors @ centroids.T, axis=1)  # (documents,)
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest, vectors)
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centroids = np.divide(sums, norms, out=centroids, where=norms > 0)
    return centroids


def _not_blank(texts: Iterable[str], *, call: str, first: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield the texts that are not blank, with their bytes."""
    check_list(texts, call=call)
    for position, text in enumerate(texts, first):
        check_str(text, where=f"{call}: text {position}")
        if text.strip():
            yield text, utf8(text, where=f"text {position}")


def _sample(documents: list[str], seen: int) -> Sample:
    if not documents:
        raise CorpusError("The corpus has no text that is not blank, so there is nothing to make a context of.")
    return Sample(documents, seen)


def _salt(seed: int) -> bytes:
    whole = check_whole(seed, "seed", least=-(2**63))
    return hashlib.blake2b(str(whole).encode(), digest_size=16).digest()


def _hash(data: bytes, salt: bytes) -> int:
    """Return 128 bits of a keyed hash; two texts collide with a probability of 2⁻¹²⁸."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=16, key=salt).digest(), "big")
