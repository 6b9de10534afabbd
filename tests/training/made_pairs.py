"""Prepared pairs from random numbers, in memory: three sources, of which two have parents, texts that stand twice,
near-duplicates, several views of some pairs, and hard negatives of all pairs of one source."""

from pathlib import Path

import numpy as np

from cde_rag_training.clustering.clusters import unit
from cde_rag_training.data.layout import VIEW_KINDS
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.tokens import token_rows

SOURCES = ("docs", "mail", "faq")
MAX_LENGTH = 12
CLS, SEP = 1, 2


def runs(random, count, least, most):
    """A number for each of `count` positions, the same for runs of least to most of them."""
    lengths = random.integers(least, most + 1, size=count)
    return np.repeat(np.arange(count), lengths)[:count]


def made_pairs(seed=0, sizes=(90, 60, 70)):
    """Prepared pairs; their order mixes sources and parents."""
    random = np.random.default_rng(seed)
    columns = {"sources": [], "domains": [], "parents": [], "fine": [], "coarse": []}
    following = dict.fromkeys(columns, 0)
    for source, size in enumerate(sizes):
        found = {
            "sources": np.full(size, source),
            "domains": np.sort(random.integers(1 + seed % 4, size=size)),
            "parents": runs(random, size, 1, 9),
            "fine": random.permutation(np.arange(size) // 20),
            "coarse": random.permutation(np.arange(size) // 45),
        }
        found["parents"] = np.unique(found["parents"] * 10 + found["domains"], return_inverse=True)[1]
        for name, column in found.items():
            columns[name].append(column + (0 if name == "sources" else following[name]))
            following[name] = columns[name][-1].max() + 1
    order = random.permutation(sum(sizes))
    columns = {name: np.concatenate(parts)[order].astype(np.int64) for name, parts in columns.items()}
    sources, count = columns["sources"], sum(sizes)
    parents = np.where(SOURCES.index("faq") == sources, -1, columns["parents"])
    documents = count + np.arange(count)
    for pair in np.flatnonzero(random.random(count) < 0.1):  # the text of another document of its source, maybe sibling
        documents[pair] = documents[random.choice(np.flatnonzero(sources == sources[pair]))]
    titles = np.where(parents >= 0, 2 * count + parents, -1)
    texts, views = 2 * count + following["parents"], []
    for pair in range(count):
        views.append((pair, VIEW_KINDS.index("own"), pair, documents[pair]))
        for kind in ("nameless", "keywords", "keywords", "sentence"):
            if random.random() < 0.7 and not (kind == "nameless" and parents[pair] < 0):
                shown = texts + 1 if kind == "sentence" else documents[pair]
                views.append((pair, VIEW_KINDS.index(kind), texts, shown))
                texts += 2 if kind == "sentence" else 1
    hard_negatives = texts + np.arange(2 * count).reshape(count, 2)
    texts += 2 * count
    hard_negatives[random.random(count) < 0.5, 1] = -1
    hard_negatives[(random.random(count) < 0.5) & (sources > 0)] = -1
    of_text = unit(random.normal(size=(texts, 6)).astype("f4"))
    near = random.random(texts) < 0.1
    of_text[near] = of_text[random.permutation(texts)[near]]
    of_text[random.random(texts) < 0.05] = 0  # as TF-IDF has for a text without a word that it knows
    lengths = random.integers(1, MAX_LENGTH - 1, size=texts)
    tokens = [[CLS, *(10 + (7 * row + np.arange(length)) % 900).tolist(), SEP] for row, length in enumerate(lengths)]
    return Prepared(
        folder=Path("made"),
        tokenizer_sha256="made",
        max_length=MAX_LENGTH,
        source_names=SOURCES,
        domain_names=tuple(f"d{number}" for number in range(columns["domains"].max() + 1)),
        settings={},
        texts=token_rows(tokens, vocabulary=1000),
        queries=np.arange(count),
        documents=documents,
        titles=titles,
        sources=sources,
        domains=columns["domains"],
        parents=parents,
        views=np.array(sorted(views)),
        hard_negatives=hard_negatives,
        query_vectors=of_text[:count].astype(np.float16),
        document_vectors=of_text[documents].astype(np.float16),
        clusters=np.stack([columns["fine"], columns["coarse"]], axis=1),
    )
