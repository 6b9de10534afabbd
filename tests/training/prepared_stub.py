"""A prepared folder of some dozens of pairs, without a surrogate model: shared by the tests of what reads one."""

from pathlib import Path

import numpy as np
from tiny import WORDS, tiny_tokenizer

from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.prepared import Facts, Prepared
from cde_rag_training.data.tokens import token_rows

DIM = 16


def stub_pairs(count: int = 96) -> list[Pair]:
    """Two thirds are passages of pages (source "docs", three domains), the others questions (source "faq")."""
    random, pairs = np.random.default_rng(0), list[Pair]()
    for number in range(count):
        words = [WORDS[word] for word in random.integers(0, 20, size=24)]
        document = f"{' '.join(words[:8])}. {' '.join(words[8:16])}. {' '.join(words[16:])}."
        heading = " ".join(words[3:6])
        if number % 3:
            parent = f"the {WORDS[number // 6 % 20]} of {WORDS[number // 12 % 20]}"
            query, domain = f"{parent}: {heading}", f"part {3 * number // count}"
            pairs.append(Pair(query, document, "docs", domain, parent))
        else:
            pairs.append(Pair(f"is {heading} {words[20]} to {words[21]}", document, "faq", "money"))
    return pairs


def stub_vectors(texts: list[str]) -> np.ndarray:
    """Unit vectors that depend on a text's letters alone."""
    rows = [np.random.default_rng(list(text.encode())).normal(size=DIM) for text in texts]
    vectors = np.array(rows, dtype=np.float32).reshape(len(texts), DIM)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def prepared_stub(folder: Path, pairs: list[Pair] | None = None) -> Prepared:
    """Prepare pairs; clusters are of 8 and 32 pairs in their order inside a source."""
    pairs = stub_pairs() if pairs is None else pairs
    rows: dict[str, int] = {}

    def row(text: str) -> int:
        return rows.setdefault(text, len(rows))

    def codes(names: list) -> tuple[np.ndarray, list]:
        numbers = {name: code for code, name in enumerate(sorted(set(names)))}
        return np.array([numbers[name] for name in names], dtype=np.int64), list(numbers)

    views = []
    for number, pair in enumerate(pairs):
        query, document = row(pair.query), row(pair.document)
        views.append((number, 0, query, document))
        if pair.parent:
            views.append((number, 1, row(pair.query.removeprefix(f"{pair.parent}: ")), document))
        views.append((number, 2, row(" ".join(pair.document.split()[4:8]).removesuffix(".")), document))
        first, _, rest = pair.document.partition(". ")
        views.append((number, 3, row(first), row(rest)))
    sources, source_names = codes([pair.source for pair in pairs])
    domains, domain_names = codes([(pair.source, pair.domain) for pair in pairs])
    parents, _ = codes([(pair.source, pair.domain, pair.parent) for pair in pairs])
    place = np.array([(sources[:number] == source).sum() for number, source in enumerate(sources)])
    width = max(len(pair.hard_negatives) for pair in pairs)
    negatives = [[row(text) for text in pair.hard_negatives] for pair in pairs]
    arrays = {
        "queries": np.array([row(pair.query) for pair in pairs]),
        "documents": np.array([row(pair.document) for pair in pairs]),
        "titles": np.array([row(pair.parent) if pair.parent else -1 for pair in pairs]),
        "hard_negatives": np.array([some + [-1] * (width - len(some)) for some in negatives], dtype=np.int64).reshape(
            len(pairs), width
        ),
        "sources": sources,
        "domains": domains,
        "parents": np.where([bool(pair.parent) for pair in pairs], parents, -1),
        "views": np.array(views),
        "query_vectors": stub_vectors([pair.query for pair in pairs]).astype(np.float16),
        "document_vectors": stub_vectors([pair.document for pair in pairs]).astype(np.float16),
        "clusters": np.stack([sources * 1000 + place // 8, sources * 1000 + place // 32], axis=1),
    }
    tokenizer = TextTokenizer(tiny_tokenizer())
    texts = token_rows([tokens.ids for tokens in tokenizer(list(rows), 64)], vocabulary=tokenizer.size)
    facts = Facts(
        tokenizer_sha256=tokenizer.sha256,
        max_length=64,
        source_names=tuple(source_names),
        domain_names=tuple(domain for _, domain in domain_names),
        settings={},
    )
    arrays |= {"tokens": texts.ids, "token_starts": texts.starts}
    if width:
        texts_of = {number: text for text, number in rows.items()}
        held = np.unique(arrays["hard_negatives"][arrays["hard_negatives"] >= 0])
        vectors = stub_vectors([texts_of[number] for number in held.tolist()])
        arrays |= {"negative_rows": held, "negative_vectors": vectors.astype(np.float16)}
    return Prepared.save(folder, arrays, facts, tiny_tokenizer())
