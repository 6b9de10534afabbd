"""A batch is full, of one source, a function of its number; its context is apart from it; its corpus is as named."""

import gzip
import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_pairs import SOURCES, made_pairs
from prepared_stub import prepared_stub

from cde_rag import CDEError
from cde_rag_training.clustering.clusters import ClusterConfig, cluster_pairs
from cde_rag_training.clustering.packing import difficulty
from cde_rag_training.clustering.surrogate import tfidf_svd
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import Corpora, CorporaConfig
from cde_rag_training.corpora.filtering import DUPLICATE
from cde_rag_training.corpora.granularity import GranularityConfig
from cde_rag_training.corpora.parent_batches import ParentConfig
from cde_rag_training.data.transformations import TransformationConfig

KINDS = ("cluster", "wide_cluster", "domain", "domains", "source")


def only(kind):
    return GranularityConfig(**{name: float(name == kind) for name in KINDS})


def config(batch_size=16, largest=24, **fields):
    return CorporaConfig(batch_size=batch_size, **({"context": ContextConfig(smallest=4, largest=largest)} | fields))


def batches(corpora, count, start=0):
    return [corpora.batch(update) for update in range(start, start + count)]


def same(one, other):
    return all(
        np.array_equal(value, vars(other)[name]) for name, value in vars(one).items() if name != "siblings"
    ) and (one.siblings == other.siblings)


configs = st.builds(
    config,
    batch_size=st.integers(1, 40),
    largest=st.integers(4, 60),
    granularity=st.sampled_from(KINDS).map(only),
    clustered_share=st.floats(0, 1),
    anchors=st.integers(1, 6),
    parents=st.builds(ParentConfig, share=st.floats(0, 1), siblings=st.integers(0, 9)),
)
seeds = st.integers(0, 50)


@settings(max_examples=40)
@given(seeds, configs)
def test_batches_are_full_of_one_source_and_without_repetition(seed, config):
    prepared = made_pairs(seed)
    for batch in batches(Corpora(prepared, config, seed=seed), 6):
        assert len(set(batch.pairs.tolist())) == len(batch.pairs) == config.batch_size
        assert len(set(prepared.sources[batch.pairs])) == 1
        assert len(batch.queries) == len(batch.documents) == len(batch.siblings) == len(batch.hard_negatives)
        views = {(pair, query, document) for pair, _, query, document in prepared.views.tolist()}
        assert views >= set(zip(batch.pairs.tolist(), batch.queries.tolist(), batch.documents.tolist(), strict=True))


@settings(max_examples=40)
@given(seeds, configs)
def test_a_context_is_apart_from_the_batch_and_its_near_duplicates(seed, config):
    prepared = made_pairs(seed)
    vector_of = dict(zip(prepared.documents.tolist(), prepared.document_vectors.astype("f4"), strict=True))
    for batch in batches(Corpora(prepared, config, seed=seed), 6):
        own = set(prepared.documents[batch.pairs].tolist())
        whole = set(prepared.documents[prepared.sources == prepared.sources[batch.pairs[0]]].tolist())
        vectors = np.stack([vector_of[row] for row in own])
        apart = {row for row in whole - own if (vectors @ vector_of[row]).max() < DUPLICATE}
        assert len(set(batch.context.tolist())) == len(batch.context) <= config.context.largest
        assert apart >= set(batch.context.tolist())
        assert len(batch.context) == 0 or len(batch.context) >= min(config.context.smallest, len(apart))


def test_context_sizes_are_log_uniform_and_some_contexts_null():
    prepared = made_pairs(sizes=(400, 400, 400))
    context = ContextConfig(smallest=4, largest=64, null_share=0.25)
    sizes = np.array([len(batch.context) for batch in batches(Corpora(prepared, config(context=context), seed=3), 300)])
    assert np.mean(sizes == 0) == pytest.approx(0.25, abs=0.06)
    assert np.median(sizes[sizes > 0]) == pytest.approx(16, abs=4)  # uniform: 34
    for share in (0.0, 1.0):
        corpora = Corpora(prepared, config(context=replace(context, null_share=share)), seed=3)
        assert {len(batch.context) == 0 for batch in batches(corpora, 30)} == {bool(share)}


@pytest.mark.parametrize("kind", KINDS)
def test_pairs_and_context_come_from_the_corpus_that_is_named(kind):
    prepared = made_pairs(3, sizes=(400, 300, 300))
    made = config(8, largest=6, granularity=only(kind), parents=ParentConfig(share=0.0))
    column = {
        "cluster": prepared.clusters[:, 0],
        "wide_cluster": prepared.clusters[:, 1],
        "source": prepared.sources,
    }.get(kind, prepared.domains)
    codes = []
    for batch in batches(Corpora(prepared, made, seed=0), 40):
        assert batch.corpus.startswith(kind.replace("_", " ") + " ")
        held = set(column[batch.pairs])
        codes.append(frozenset(held))
        assert len(held) == 1 or kind == "domains"
        if kind == "domain":
            assert batch.corpus.startswith(f"domain {prepared.domain_names[held.pop()]} of ")
        if kind != "domains":
            assert set(batch.context.tolist()) <= set(prepared.documents[column == column[batch.pairs[0]]].tolist())
        else:
            named = batch.corpus.removeprefix("domains ").split(" of ")[0].split(", ")
            assert 2 <= len(named) < 4
            assert {prepared.domain_names[code] for code in held} <= set(named)
    assert len(set(codes)) > 2


def test_granularities_have_their_shares():
    shares = GranularityConfig(cluster=0.4, wide_cluster=0.1, domain=0.2, domains=0.2, source=0.1)
    prepared = made_pairs(3)
    drawn = batches(Corpora(prepared, config(granularity=shares), seed=0), 300)
    counts = Counter(
        next(kind for kind in ("wide cluster", "cluster", "domains", "domain", "source") if f"{kind} " in batch.corpus)
        for batch in drawn
    )
    for kind, share in asdict(shares).items():
        assert counts[kind.replace("_", " ")] / 300 == pytest.approx(share, abs=0.07)


def test_sources_are_drawn_by_their_size_to_the_power_of_alpha():
    prepared = made_pairs(sizes=(800, 50, 50))
    for exponent, expected in ((0.0, 1 / 3), (0.5, 800**0.5 / (800**0.5 + 2 * 50**0.5)), (1.0, 800 / 900)):
        made = config(source_exponent=exponent, parents=ParentConfig(share=0.0))
        drawn = batches(Corpora(prepared, made, seed=1), 300)
        share = np.mean([SOURCES[prepared.sources[batch.pairs[0]]] == "docs" for batch in drawn])
        assert share == pytest.approx(expected, abs=0.08)


def test_the_clustered_share_is_from_a_few_clusters():
    prepared = made_pairs(sizes=(600, 600, 600))
    made = config(40, granularity=only("source"), parents=ParentConfig(share=0.0))
    for share, anchors, expected in ((0.0, 1, 0.0), (0.5, 1, 0.5), (0.5, 2, 0.5), (1.0, 4, 1.0)):
        corpora = Corpora(prepared, replace(made, clustered_share=share, anchors=anchors), seed=1)
        found = []
        for batch in batches(corpora, 20):
            counts = Counter(prepared.clusters[batch.pairs, 0].tolist())
            found.append(sum(count for _, count in counts.most_common(anchors)) / 40)
        assert np.mean(found) == pytest.approx(expected, abs=0.15)


def test_some_batches_are_of_parents_and_most_of_these_have_siblings():
    prepared = made_pairs()
    parents = ParentConfig(share=0.6, no_siblings_share=0.25)
    drawn = batches(Corpora(prepared, config(parents=parents), seed=0), 400)
    of_parents = [batch for batch in drawn if batch.corpus.startswith("parents in ")]
    assert len(of_parents) / 400 == pytest.approx(0.6, abs=0.07)
    assert np.mean([any(batch.siblings) for batch in of_parents]) == pytest.approx(0.75, abs=0.08)
    assert not any(any(batch.siblings) for batch in drawn if not batch.corpus.startswith("parents in "))
    for batch in of_parents:
        assert SOURCES[prepared.sources[batch.pairs[0]]] != "faq"  # which has no parents
    shared = [
        np.mean([n > 1 for n in Counter(prepared.parents[batch.pairs].tolist()).values()]) for batch in of_parents
    ]
    assert np.mean(shared) > 0.75  # siblings are negatives of each other


def test_documents_of_other_batches_have_siblings_where_asked_and_the_batches_stay_the_same():
    prepared = made_pairs()
    without = batches(Corpora(prepared, config(parents=ParentConfig(share=0.0)), seed=0), 200)
    apart = ParentConfig(share=0.0, apart_share=0.3, lone_share=0.0, wrong_share=0.0)
    drawn = batches(Corpora(prepared, config(parents=apart), seed=0), 200)
    given = [batch for batch in drawn if any(batch.siblings)]
    with_parents = [batch for batch in drawn if SOURCES[prepared.sources[batch.pairs[0]]] != "faq"]
    assert len(given) / len(with_parents) == pytest.approx(0.3, abs=0.1)
    for batch, plain in zip(drawn, without, strict=True):
        assert np.array_equal(batch.pairs, plain.pairs)
        for pair, siblings in zip(batch.pairs, batch.siblings, strict=True):
            family = prepared.documents[prepared.parents == prepared.parents[pair]]
            assert set(siblings) <= set(family.tolist())


def test_data_without_parents_has_batches_without():
    prepared = made_pairs()
    without = replace(prepared, parents=np.full(len(prepared), -1), titles=np.full(len(prepared), -1))
    drawn = batches(Corpora(without, config(parents=ParentConfig(share=1.0, apart_share=1.0)), seed=0), 20)
    assert not any("parents" in batch.corpus or any(batch.siblings) for batch in drawn)


def test_hard_negatives_are_filled_up_and_never_beside_siblings_or_titles():
    """As many of each pair as the one with the most has; pairs with fewer get random documents of their source."""
    prepared = made_pairs()
    found = Counter()
    transformations = TransformationConfig(titled_share=0.3)
    for batch in batches(Corpora(prepared, config(hard_negatives=2, transformations=transformations), seed=0), 200):
        own = prepared.hard_negatives[batch.pairs]
        given = any(batch.siblings) or batch.transformation.titled
        most = 0 if given else (own >= 0).sum(axis=1).max()
        assert batch.hard_negatives.shape == batch.own_negatives.shape == (16, most)
        source = prepared.sources == prepared.sources[batch.pairs[0]]
        of_source = set(prepared.documents[source].tolist())
        for row, rest, kept, document in zip(
            batch.hard_negatives, own, batch.own_negatives, prepared.documents[batch.pairs], strict=True
        ):
            assert len(set(row.tolist())) == most
            assert set(row[kept].tolist()) == set(rest.tolist()) - {-1} or most < (rest >= 0).sum()
            assert set(row[~kept].tolist()) <= of_source - {document}
        found[SOURCES[prepared.sources[batch.pairs[0]]]] += batch.random_negatives
    assert min(found.values()) > 20
    assert Corpora(prepared, config(hard_negatives=0), seed=0).batch(0).hard_negatives.shape == (16, 0)


def test_the_transformation_is_the_batch_s_with_a_header_from_its_source():
    prepared = made_pairs()
    transformations = TransformationConfig(titled_share=0.5, cut_share=0.5, shortest_cut=2, header_share=0.5)
    for batch in batches(Corpora(prepared, config(transformations=transformations), seed=0), 50):
        header = batch.transformation.header
        assert header == -1 or prepared.sources[prepared.documents == header][0] == prepared.sources[batch.pairs[0]]
    assert len({batch.transformation for batch in batches(Corpora(prepared, config(), seed=0), 20)}) == 1


def test_a_batch_is_a_function_of_its_number():
    one, other = (Corpora(made_pairs(), config(), seed=4) for _ in range(2))
    forward = batches(one, 12)
    backward = [other.batch(update) for update in reversed(range(12))][::-1]
    assert all(map(same, forward, backward))
    assert not same(forward[0], forward[1])
    assert not same(forward[0], Corpora(made_pairs(), config(), seed=5).batch(0))


def test_another_process_draws_the_same_batch(tmp_path):
    prepared = prepared_stub(tmp_path)
    made = CorporaConfig(batch_size=12, context=ContextConfig(smallest=4, largest=16))
    code = (
        "import sys; from cde_rag_training.corpora.corpus_batches import *\n"
        "from cde_rag_training.data.prepared import Prepared\n"
        "made = CorporaConfig(batch_size=12, context=ContextConfig(smallest=4, largest=16))\n"
        "batch = Corpora(Prepared.load(sys.argv[1]), made, seed=2).batch(9)\n"
        "print(batch.pairs.tolist(), batch.queries.tolist(), batch.context.tolist(), batch.siblings)\n"
        "assert not {'faiss', 'bm25s', 'pyarrow'} & sys.modules.keys()"
    )
    found = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    batch = Corpora(prepared, made, seed=2).batch(9)
    expected = (batch.pairs.tolist(), batch.queries.tolist(), batch.context.tolist(), batch.siblings)
    assert found.stdout == f"{' '.join(map(str, expected))}\n"


def test_a_source_smaller_than_a_batch_and_its_context_is_named():
    with pytest.raises(CDEError, match=r"Expected 61 pairs or more .* 57, and 4 documents .* found 60 of 'mail'"):
        Corpora(made_pairs(), config(57), seed=0)
    Corpora(made_pairs(), config(56), seed=0)
    Corpora(made_pairs(), config(60, context=ContextConfig(documents="batch")), seed=0).batch(0)
    with pytest.raises(CDEError, match="found 60 of 'mail'"):
        Corpora(made_pairs(), config(61, context=ContextConfig(documents="batch")), seed=0)


@pytest.mark.parametrize("shares", [{"source": 0.2}, {"cluster": -0.3, "source": 0.75}])
def test_shares_of_granularity_are_a_distribution(shares):
    with pytest.raises(ValueError, match="sum is 1"):
        GranularityConfig(**shares)


def test_batches_of_real_pairs_are_harder_the_smaller_their_corpora(shared_data):
    """Figure 6, for corpora: a whole source too, for its clustered share."""
    pairs = []
    for source in ("medquad", "movies"):
        with gzip.open(Path(shared_data) / "train" / source / "pairs.jsonl.gz", "rt") as lines:
            pairs += [(source, json.loads(line)) for line in itertools.islice(lines, 1000)]
    texts = [[pair[side] for _, pair in pairs] for side in ("query", "document")]
    surrogate = tfidf_svd([*texts[0], *texts[1]], dims=64, seed=0)
    queries, documents = surrogate(texts[0]), surrogate(texts[1])
    sources = [source for source, _ in pairs]
    clusters = [
        cluster_pairs(queries, documents, sources, ClusterConfig(size=size, steps=10, attempts=1)) for size in (32, 256)
    ]
    prepared = replace(
        made_pairs(sizes=(1000, 900, 100)),
        source_names=("medquad", "movies"),
        sources=np.repeat([0, 1], 1000),
        domains=np.repeat([0, 1], 1000),
        clusters=np.stack(clusters, axis=1),
        query_vectors=queries.astype(np.float16),
        document_vectors=documents.astype(np.float16),
    )

    def mean_difficulty(kind, clustered_share=0.7):
        made = config(32, granularity=only(kind), clustered_share=clustered_share, parents=ParentConfig(share=0.0))
        drawn = batches(Corpora(prepared, made, seed=0), 40)
        return float(difficulty(np.stack([batch.pairs for batch in drawn]), queries, documents).mean())

    random = mean_difficulty("source", 0.0)
    by_size = [mean_difficulty(kind) for kind in ("cluster", "wide_cluster", "source")]
    assert by_size[0] > by_size[1] > by_size[2] > random
    assert by_size[0] > 1.3 * random
