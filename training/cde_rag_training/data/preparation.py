"""Pairs become arrays once, on a machine with the surrogate and faiss; training then needs neither."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from tqdm import tqdm

from cde_rag._files import write_durably
from cde_rag.errors import CorpusError
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.stores.files import locked
from cde_rag_training.clustering.clusters import (
    LAPTOP,
    ClusterConfig,
    cluster_pairs,
    main_directions,
    reduced,
    unit,
)
from cde_rag_training.clustering.surrogate import Surrogate, cached
from cde_rag_training.data.array_folder import LOCK, open_array, seal
from cde_rag_training.data.layout import (
    FILTER,
    GRADES,
    LAYOUT,
    LEXICAL,
    LEXICAL_NEGATIVES,
    NEGATIVES,
    PASSAGES,
    PREFIXES,
)
from cde_rag_training.data.lexical import lexical_pairs
from cde_rag_training.data.pairs import CorpusPassage, Pair
from cde_rag_training.data.prepared import TOKENIZER, Prepared
from cde_rag_training.data.steps import Step, Steps
from cde_rag_training.data.text_rows import pairs_digest, passages_digest, rows_of
from cde_rag_training.data.tokens import token_rows

METHOD = 2  # goes up when the same pairs would give other arrays
BLOCK = 4096  # texts tokenised at a time
VECTORS = ("query_vectors", "document_vectors")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Configuration of the preparation. All ours, except for `ClusterConfig`."""

    max_length: int = 256  # tokens that texts are cut at, special tokens included
    surrogate: str = "minilm-256"  # says all that determines the surrogate's vectors: its place in the cache
    filter_surrogate: str = (
        ""  # likewise, of a surrogate of the filter's own; empty: the one that clusters.   paper §5: two
    )
    dims: int | None = None  # of the surrogate embeddings that are kept; None: all of them
    clusters: ClusterConfig = LAPTOP  # the fine ones
    coarse_size: int = 4096  # pairs per coarse cluster aimed at
    keyword_views: int = 2  # of a pair, at most: queries of some words of its document
    sentence_views: int = 1  # of a pair, at most: a sentence as the query, the rest as the document
    lexical: bool = False  # words and weights for the filter rule "agreement"
    seed: int = 0  # of the views


def prepare(
    pairs: Iterable[Pair],
    tokenizer: TextTokenizer,
    output: Path,
    config: PrepareConfig,
    *,
    surrogate: Surrogate,
    filter_surrogate: Surrogate | None = None,
    passages: Sequence[CorpusPassage] = (),
    cache: Path | None = None,
    progress: bool = False,
) -> Prepared:
    """Write a prepared folder: texts as token ids, views, surrogate embeddings, clusters at two sizes, BM25 weights.

    Finished steps are stored with a key of their inputs: a killed run resumes, and a run with other settings repeats
    only the steps that these affect. The manifest is written last.

    Args:
        pairs: Held in memory; near-duplicates are not looked for (`without_near_duplicates`).
        tokenizer: Tokenizer of the model that is to be trained.
        output: The folder. Steps whose inputs changed are repeated.
        config: Configuration of the preparation.
        surrogate: Texts to vectors; their length does not matter.
        filter_surrogate: Likewise, for the filter of false negatives alone; None: the one that clusters.
        passages: All passages of the pairs' corpora, in the order of their parents: contexts of a domain and siblings
            are then drawn from them. Without them, from the documents of pairs.
        cache: Folder of data kept between runs, mainly the surrogate embeddings of texts; by default
            `output/cache`. It may be deleted, and is not packed.
        progress: Show bars on stderr.

    Raises:
        CorpusError: No pairs, a pair with an empty text, or vectors that are not finite.
        MissingExtraError: faiss, or what lexical pairs need, is not installed.
        StoreError: Another run prepares pairs in the folder.
        OSError: The disk is full: no incomplete file is left, and the next run resumes.
        ValueError: A surrogate of the filter without its name in the config, or the name without it.

    Source: paper §4.1 and §5.1; views and the two sizes are ours (design §9).
    """
    pairs = list(pairs)
    _check(pairs)
    if (filter_surrogate is None) != (not config.filter_surrogate):
        raise ValueError(
            f"Expected a filter_surrogate and its name in the config, found the name {config.filter_surrogate!r} and "
            f"{'no' if filter_surrogate is None else 'a'} surrogate. Give both or none."
        )
    cache = cache or output / "cache"
    output.mkdir(parents=True, exist_ok=True)
    with locked(
        output / LOCK, f"{output}: another run prepares pairs in this folder. Wait for its end, or name another"
    ):
        steps = Steps(output, cache)
        given = {"method": METHOD, "pairs": pairs_digest(pairs)}
        texts = {
            "tokenizer": tokenizer.sha256,
            "max_length": config.max_length,
            "views": [config.keyword_views, config.sentence_views, config.seed],
        }
        texts |= {"passages": passages_digest(passages)} if passages else {}
        facts = steps.run("texts", given | texts, lambda: _texts(pairs, passages, tokenizer, config, progress=progress))
        vectors = given | {"surrogate": config.surrogate, "dims": config.dims}
        folder = cache / "surrogate"
        steps.run("vectors", vectors, lambda: _vectors(pairs, surrogate, folder, config, progress=progress))
        sizes = {"clusters": asdict(config.clusters), "coarse_size": config.coarse_size}
        steps.run("clusters", vectors | sizes, lambda: _clusters(pairs, output, config))
        prefixed = any((pair.query_prefix, pair.document_prefix) != (None, None) for pair in pairs)
        arrays = LAYOUT | (PASSAGES if passages else {}) | (PREFIXES if prefixed else {})
        arrays |= GRADES if any(pair.grade != 1 for pair in pairs) else {}
        hard = any(pair.hard_negatives for pair in pairs)
        if hard or filter_surrogate is not None:
            key = vectors | texts | {"filter": config.filter_surrogate}
            both = surrogate, filter_surrogate
            steps.run("filter", key, lambda: _filter(pairs, both, output, folder, config, progress=progress))
            arrays |= (NEGATIVES if hard else {}) | (FILTER if filter_surrogate is not None else {})
        if config.lexical:
            steps.run("lexical", given | (texts if hard else {}), lambda: _lexical(pairs, output if hard else None))
            arrays |= LEXICAL | (LEXICAL_NEGATIVES if hard else {})
        write_durably(output / TOKENIZER, tokenizer.serialised.encode())
        seal(output, [TOKENIZER, *(f"{name}.npy" for name in arrays)], {**facts, "settings": asdict(config)})
    return Prepared.load(output)


def _check(pairs: Sequence[Pair]) -> None:
    if not pairs:
        raise CorpusError("Expected pairs to prepare, found none.")
    for number, pair in enumerate(pairs):
        for side, text in (("query", pair.query), ("document", pair.document)):
            if not text.strip():
                raise CorpusError(f"Pair {number} (source {pair.source!r}): the {side} is blank. Leave the pair out.")


def _texts(
    pairs: Sequence[Pair],
    passages: Sequence[CorpusPassage],
    tokenizer: TextTokenizer,
    config: PrepareConfig,
    *,
    progress: bool,
) -> Step:
    reach = _reach([pair.document for pair in pairs], tokenizer, config.max_length)
    rows = rows_of(
        pairs,
        reach,
        keyword_views=config.keyword_views,
        sentence_views=config.sentence_views,
        seed=config.seed,
        passages=passages,
    )
    tokens = _tokens(rows.texts, tokenizer, config.max_length, progress=progress)
    texts = token_rows(tokens, vocabulary=tokenizer.size)
    facts = {
        "tokenizer_sha256": tokenizer.sha256,
        "max_length": config.max_length,
        "source_names": rows.source_names,
        "domain_names": rows.domain_names,
    }
    return Step(rows.arrays | {"tokens": texts.ids, "token_starts": texts.starts}, facts)


def _reach(documents: Sequence[str], tokenizer: TextTokenizer, max_length: int) -> list[int]:
    """Return the number of characters of each document that fit into `max_length` tokens."""
    blocks = (documents[start : start + BLOCK] for start in range(0, len(documents), BLOCK))
    return [end for block in blocks for end in tokenizer.reach(block, max_length)]


def _tokens(
    texts: Sequence[str], tokenizer: TextTokenizer, max_length: int, *, progress: bool
) -> Iterator[Sequence[int]]:
    with tqdm(total=len(texts), desc="tokens", unit=" texts", disable=not progress) as bar:
        for start in range(0, len(texts), BLOCK):
            block = texts[start : start + BLOCK]
            yield from (tokens.ids for tokens in tokenizer(block, max_length, first=start))
            bar.update(len(block))


def _vectors(
    pairs: Sequence[Pair], surrogate: Surrogate, folder: Path, config: PrepareConfig, *, progress: bool
) -> Step:
    sides = _sides(pairs, surrogate, config.surrogate, folder, progress=progress)
    if config.dims is not None:
        sides = reduced(*sides, config.dims)
    return Step({name: side.astype(np.float16) for name, side in zip(VECTORS, sides, strict=True)}, {})


def _sides(
    pairs: Sequence[Pair], surrogate: Surrogate, name: str, folder: Path, *, progress: bool
) -> tuple[Float32[np.ndarray, "pairs dim"], Float32[np.ndarray, "pairs dim"]]:
    """Embed the queries and the documents of pairs."""
    queries, documents = [pair.query for pair in pairs], [pair.document for pair in pairs]
    found = _embedded(queries + documents, surrogate, name, folder, progress=progress)
    return found[: len(pairs)], found[len(pairs) :]


def _embedded(
    given: Sequence[str], surrogate: Surrogate, name: str, folder: Path, *, progress: bool
) -> Float32[np.ndarray, "texts dim"]:
    """Embed texts, each different one once, at unit norm."""
    texts = list(dict.fromkeys(given))
    rows = {text: row for row, text in enumerate(texts)}
    with tqdm(total=len(texts), desc="surrogate", unit=" texts", disable=not progress) as bar:

        def embed(block: Sequence[str]) -> Float32[np.ndarray, "texts dim"]:
            vectors = surrogate(block)
            bar.update(len(block))
            return vectors

        found = unit(cached(embed, name, folder)(texts))
    if not np.isfinite(found).all():
        bad = texts[int(np.flatnonzero(~np.isfinite(found).all(axis=1))[0])]
        raise CorpusError(f"Expected finite vectors of the surrogate, found others for the text {bad!r:.80}.")
    return found[[rows[text] for text in given]]


def _negatives(pairs: Sequence[Pair], folder: Path) -> dict[int, str]:
    """Return the hard negatives, each text once, by their text rows in ascending order."""
    rows = open_array(folder / "hard_negatives.npy")
    found = {
        int(row): text
        for pair, some in zip(pairs, rows, strict=True)
        for text, row in zip(pair.hard_negatives, some, strict=False)
    }
    return dict(sorted(found.items()))


def _filter(
    pairs: Sequence[Pair],
    surrogates: tuple[Surrogate, Surrogate | None],
    output: Path,
    folder: Path,
    config: PrepareConfig,
    *,
    progress: bool,
) -> Step:
    """Embed texts for the filter by its own surrogate, or else hard negatives by the one that clusters."""
    first, second = surrogates
    surrogate, name = (first, config.surrogate) if second is None else (second, config.filter_surrogate)
    negatives = _negatives(pairs, output)
    arrays: dict[str, np.ndarray] = {}
    if second is not None:
        sides = _sides(pairs, surrogate, name, folder, progress=progress)
        arrays = {f"filter_{each}": side.astype(np.float16) for each, side in zip(VECTORS, sides, strict=True)}
    if negatives:
        vectors = _embedded(list(negatives.values()), surrogate, name, folder, progress=progress)
        if second is None and config.dims is not None and config.dims < vectors.shape[1]:
            sides = _sides(pairs, surrogate, name, folder, progress=progress)
            vectors = unit(vectors @ main_directions(*sides, config.dims))
        arrays["negative_rows"] = np.array(list(negatives), dtype=np.int64)
        arrays["negative_vectors"] = vectors.astype(np.float16)
    return Step(arrays, {})


def _clusters(pairs: Sequence[Pair], folder: Path, config: PrepareConfig) -> Step:
    queries, documents = (open_array(folder / f"{name}.npy").astype(np.float32) for name in VECTORS)
    sources = [pair.source for pair in pairs]
    levels = [
        cluster_pairs(queries, documents, sources, replace(config.clusters, size=size))
        for size in (config.clusters.size, config.coarse_size)
    ]
    return Step({"clusters": np.stack(levels, axis=1)}, {})


def _lexical(pairs: Sequence[Pair], folder: Path | None) -> Step:
    """Weigh the terms of queries, documents and, where there is a folder of their rows, hard negatives."""
    negatives = None if folder is None else list(_negatives(pairs, folder).values())
    lexical = lexical_pairs([pair.query for pair in pairs], [pair.document for pair in pairs], negatives)
    arrays = {f"lexical_{field.name}": getattr(lexical, field.name) for field in fields(lexical)}
    return Step({name: array for name, array in arrays.items() if array is not None}, {})
