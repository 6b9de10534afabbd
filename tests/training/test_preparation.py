"""What is prepared is the pairs again, by the slow way; it depends on their content alone and survives a kill."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prepared_stub import stub_pairs, stub_vectors
from tiny import WORDS, tiny_tokenizer

from cde_rag import CDEError
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.stores.files import locked
from cde_rag_training.clustering.clusters import LAPTOP
from cde_rag_training.data import steps
from cde_rag_training.data.alternative_queries import KeywordQueries, without_parent
from cde_rag_training.data.array_folder import MANIFEST, PreparedError
from cde_rag_training.data.layout import VIEW_KINDS
from cde_rag_training.data.lexical import lexical_pairs
from cde_rag_training.data.pairs import Pair
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.prepared import Prepared

TOKENIZER = TextTokenizer(tiny_tokenizer())
CONFIG = PrepareConfig(max_length=24, surrogate="stub", clusters=replace(LAPTOP, size=8), coarse_size=40)


class Surrogate:
    """The stub's vectors, of length 3; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, texts):
        self.asked += texts
        return 3 * stub_vectors(list(texts))


def made(output, pairs=None, config=CONFIG, surrogate=None):
    return prepare(
        stub_pairs() if pairs is None else pairs, TOKENIZER, output, config, surrogate=surrogate or Surrogate()
    )


def ids(text):
    return TOKENIZER([text], 24)[0].ids


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    pairs = stub_pairs()
    pairs[3] = replace(pairs[3], hard_negatives=("the bank", pairs[0].document))
    pairs[7] = replace(pairs[7], hard_negatives=("the river",))
    return pairs, made(tmp_path_factory.mktemp("made"), pairs, replace(CONFIG, lexical=True))


def test_pairs_come_back(prepared):
    pairs, found = prepared
    assert len(found) == len(pairs)
    for number, pair in enumerate(pairs):
        assert found.texts[found.queries[number]] == ids(pair.query)
        assert found.texts[found.documents[number]] == ids(pair.document)
        assert found.source_names[found.sources[number]] == pair.source
        assert found.domain_names[found.domains[number]] == pair.domain
        title = found.titles[number]
        assert (found.texts[title] == ids(pair.parent)) if pair.parent else (title == found.parents[number] == -1)
        negatives = found.hard_negatives[number]
        assert [found.texts[row] for row in negatives if row >= 0] == [ids(text) for text in pair.hard_negatives]
    assert found.hard_negatives.shape == (len(pairs), 2)
    assert found.hard_negatives[3, 1] == found.documents[0]  # one text, one row
    parents = [(pair.source, pair.domain, pair.parent) for pair in pairs]
    for one in range(len(pairs)):
        same = [parents[one] == other and bool(parents[one][2]) for other in parents]
        np.testing.assert_array_equal((found.parents == found.parents[one]) & (found.parents >= 0), same)


def test_views_show_a_pair_in_other_words(prepared):
    pairs, found = prepared
    kinds = {kind: [] for kind in VIEW_KINDS}
    for pair, kind, query, document in found.views.tolist():
        kinds[VIEW_KINDS[kind]].append((pairs[pair], query, found.documents[pair] == document, document))
    assert len(kinds["own"]) == len(pairs)
    for pair, query, whole, _ in kinds["own"]:
        assert whole
        assert found.texts[query] == ids(pair.query)
    assert len(kinds["nameless"]) == sum(bool(pair.parent) for pair in pairs)
    for pair, query, whole, _ in kinds["nameless"]:
        assert whole
        assert found.texts[query] == ids(without_parent(pair.query, pair.parent)) != ids(pair.query)
    assert len(pairs) < len(kinds["keywords"]) <= 2 * len(pairs)
    for pair, query, whole, _ in kinds["keywords"]:
        assert whole
        assert set(found.texts[query]) <= set(TOKENIZER([pair.document], 99)[0].ids)
    assert len(kinds["sentence"]) == len(pairs)
    for pair, query, whole, document in kinds["sentence"]:
        assert not whole
        sentence, rest = found.text(query), found.text(document)
        assert sentence.removeprefix("[CLS] ").split(" [")[0] not in rest
        assert found.texts[document][1] in (ids(pair.document)[1], ids(pair.document.split(". ")[1])[1])


def test_views_ask_for_what_is_read_of_a_long_document(tmp_path):
    random, words = np.random.default_rng(3), [word for word in WORDS if word.isalpha()]
    pairs = []
    for number in range(12):
        sentences = [" ".join(random.choice(words[:12], size=8)) + "." for _ in range(2)]
        unread = [" ".join(random.choice(words[12:], size=8)) + "." for _ in range(200)]
        pairs.append(Pair(f"what is {number}", " ".join(sentences + unread), "long", "long"))
    found = made(tmp_path, pairs, replace(CONFIG, max_length=20))
    assert TOKENIZER.reach(["the bank", pairs[0].document], 20) == [8, len(" ".join(pairs[0].document.split()[:16]))]
    read = set(ids(" ".join(words[:12]))) | set(ids("."))
    kinds = found.views[:, 1].tolist()
    assert kinds.count(VIEW_KINDS.index("keywords")) > 12
    assert kinds.count(VIEW_KINDS.index("sentence")) == 12
    for _, kind, query, _ in found.views.tolist():
        if VIEW_KINDS[kind] in ("keywords", "sentence"):
            assert set(found.texts[query]) <= read


def test_vectors_and_clusters(prepared):
    pairs, found = prepared
    everything = np.arange(len(pairs))
    np.testing.assert_allclose(
        found.query_vectors_of(everything), stub_vectors([pair.query for pair in pairs]), atol=1e-3
    )
    documents = stub_vectors([pair.document for pair in pairs])
    np.testing.assert_allclose(found.document_vectors_of(everything), documents, atol=1e-3)
    for level, size in enumerate((8, 40)):
        clusters = found.clusters[:, level]
        assert np.bincount(clusters).max() <= 2 * size
        for cluster in np.unique(clusters):
            assert len(np.unique(found.sources[clusters == cluster])) == 1
    assert found.clusters[:, 0].max() > found.clusters[:, 1].max() > 0


def test_lexical_pairs(prepared):
    pairs, found = prepared
    lexical = lexical_pairs([pair.query for pair in pairs], [pair.document for pair in pairs])
    batch = np.array([0, 5, 9])
    np.testing.assert_array_equal(found.lexical.scores(batch), lexical.scores(batch))


def with_negatives(number, pair):
    texts = (f"a river of {number % 5}", f"the bank in {pair.document}")
    return replace(pair, hard_negatives=texts[: number % 3])


@pytest.mark.parametrize("dims", [None, 5])
@pytest.mark.parametrize("other", [False, True])
def test_hard_negatives_and_a_surrogate_of_the_filter(tmp_path, dims, other):
    """Each hard negative has a vector where the filter compares it; the clusters know nothing of the filter."""
    pairs = [with_negatives(number, pair) for number, pair in enumerate(stub_pairs(60))]
    config, filtering = replace(CONFIG, dims=dims, lexical=True), None
    if other:
        config = replace(config, filter_surrogate="other")

        def filtering(texts):
            return stub_vectors([text[::-1] for text in texts])[:, :7]

    found = prepare(pairs, TOKENIZER, tmp_path, config, surrogate=Surrogate(), filter_surrogate=filtering)
    plain = prepare(pairs, TOKENIZER, tmp_path / "plain", replace(config, filter_surrogate=""), surrogate=Surrogate())
    np.testing.assert_array_equal(found.clusters, plain.clusters)
    rows, texts = found.hard_negatives, [pair.hard_negatives for pair in pairs]
    flat = np.array([row for some, has in zip(rows.tolist(), texts, strict=True) for row in some[: len(has)]])
    flat_texts = [text for some in texts for text in some]
    vectors, sides = found.negative_vectors_of(flat), found.filter_vectors_of(np.arange(len(pairs)))
    if other:
        np.testing.assert_allclose(vectors, filtering(flat_texts) / norms(filtering(flat_texts)), atol=1e-3)
        documents = filtering([pair.document for pair in pairs])
        np.testing.assert_allclose(sides[1], documents / norms(documents), atol=1e-3)
    else:
        full, queries = stub_vectors(flat_texts), stub_vectors([pair.query for pair in pairs])
        documents = stub_vectors([pair.document for pair in pairs])
        if dims is not None:  # the directions of the pairs, by a singular value decomposition
            directions = np.linalg.svd(np.concatenate([queries, documents]))[2][:dims].T
            full, queries = (each @ directions / norms(each @ directions) for each in (full, queries))
        np.testing.assert_allclose(vectors @ sides[0].T, full @ queries.T, atol=3e-3)
        assert found.filter_query_vectors is None
    everyone = found.negative_vectors_of(np.asarray(found.documents))
    np.testing.assert_array_equal(everyone, sides[1])
    with pytest.raises(KeyError, match="hard negatives with vectors or of documents"):
        found.negative_vectors_of(np.array([found.queries[0]]))
    assert Prepared.load(tmp_path).negative_rows.tolist() == sorted(set(flat.tolist()))
    assert found.lexical.scores_of_negatives(np.arange(60), np.arange(len(found.negative_rows))).max() > 0


def norms(vectors):
    return np.linalg.norm(vectors, axis=1, keepdims=True)


def test_a_surrogate_of_the_filter_has_a_name(tmp_path):
    for name, surrogate in (("", stub_vectors), ("other", None)):
        config = replace(CONFIG, filter_surrogate=name)
        with pytest.raises(ValueError, match="Give both or none"):
            prepare(stub_pairs(20), TOKENIZER, tmp_path, config, surrogate=Surrogate(), filter_surrogate=surrogate)


def test_the_same_again_does_nothing_and_gives_the_same_bytes(tmp_path):
    made(tmp_path / "a")
    before = files(tmp_path / "a")
    surrogate = Surrogate()
    made(tmp_path / "a", surrogate=surrogate)
    made(tmp_path / "b")
    assert surrogate.asked == []
    assert files(tmp_path / "a") == files(tmp_path / "b") == before


def test_two_runs_do_not_share_a_folder(tmp_path):
    with locked(tmp_path / "run.lock", "taken"), pytest.raises(CDEError, match="another run prepares pairs in this"):
        made(tmp_path)
    assert len(made(tmp_path)) == len(stub_pairs())


def test_what_changes_is_made_anew_and_nothing_else(tmp_path):
    made(tmp_path)
    before = files(tmp_path)
    surrogate = Surrogate()
    made(tmp_path, config=replace(CONFIG, coarse_size=16), surrogate=surrogate)
    changed = {name for name, content in files(tmp_path).items() if content != before[name]}
    assert changed == {"clusters.npy", MANIFEST}
    extra = Pair("is it new", "the new river is in flood", "faq", "money")
    more = [*stub_pairs(), extra]
    assert len(made(tmp_path, more, surrogate=surrogate)) == 97
    assert surrogate.asked == [extra.query, extra.document]
    assert made(tmp_path, more, replace(CONFIG, dims=4), surrogate).query_vectors.shape == (97, 4)
    assert made(tmp_path, more, replace(CONFIG, lexical=True), surrogate).lexical is not None
    assert made(tmp_path, more, CONFIG, surrogate).lexical is None
    assert len(surrogate.asked) == 2


def test_damage_is_mended_by_preparing_again(tmp_path):
    made(tmp_path)
    before = files(tmp_path)
    for name in ("tokens.npy", "clusters.npy", "query_vectors.npy"):
        (tmp_path / name).write_bytes(before[name][:-1])
    with pytest.raises(PreparedError, match="run prepare again"):
        Prepared.load(tmp_path)
    made(tmp_path)
    assert files(tmp_path) == before


SCRIPT = """
import os, signal, sys
from pathlib import Path
from cde_rag import _files
from cde_rag_training.data import array_folder
from cde_rag_training.data import preparation
from cde_rag_training.data import steps
from cde_rag_training.clustering import surrogate
from test_preparation import made

left = int(sys.argv[2])
def killed(path, data, write=_files.write_durably):
    global left
    left -= 1
    if left == 0:
        path.with_name(f".{path.name}.half.tmp").write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    write(path, data)

array_folder.write_durably = steps.write_durably = preparation.write_durably = killed
surrogate.BLOCK = 50
made(Path(sys.argv[1]))
print("done")
"""


@pytest.mark.parametrize("write", [1, 12, *(pytest.param(write, marks=pytest.mark.long) for write in (11, 14, 18))])
def test_killed_at_any_write_the_next_run_goes_on(tmp_path, write):
    made(tmp_path / "whole")
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(folders)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "killed"), str(write)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with pytest.raises(PreparedError, match="not ready"):
        Prepared.load(tmp_path / "killed")
    records = {path.stem for path in (tmp_path / "killed/cache").glob("*.json")}
    surrogate = Surrogate()
    made(tmp_path / "killed", surrogate=surrogate)
    found = {name: data for name, data in files(tmp_path / "killed").items() if not name.endswith(".tmp")}
    assert found == files(tmp_path / "whole")
    assert ("texts" in records) == (write > 11)
    assert bool(surrogate.asked) == (write <= 11)


def test_a_full_disk_leaves_nothing_that_looks_finished(tmp_path, monkeypatch):
    made(tmp_path)
    before = files(tmp_path)

    def full(path, array):
        path.with_name(f".{path.name}.tmp").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(steps, "write_array", full)
        with pytest.raises(OSError, match="No space"):
            made(tmp_path, config=replace(CONFIG, coarse_size=16))
    with pytest.raises(PreparedError, match="not ready"):
        Prepared.load(tmp_path)
    made(tmp_path)
    assert {name: data for name, data in files(tmp_path).items() if not name.endswith(".tmp")} == before


def test_one_domain_fewer_pairs_than_a_cluster(tmp_path):
    found = made(tmp_path, [pair for pair in stub_pairs(9) if pair.source == "faq"])
    assert len(found) == 3
    assert found.clusters.tolist() == [[0, 0]] * 3
    assert found.domain_names == ("money",)
    assert (found.titles == -1).all()
    assert found.hard_negatives.shape == (3, 0)


def test_domains_of_two_sources_may_share_a_name(tmp_path):
    found = made(tmp_path, [Pair("the river", "a river", "one", "x"), Pair("the bank", "a bank", "two", "x")])
    assert found.domain_names == ("x", "x")
    assert found.domains.tolist() == [0, 1]


def test_what_draws_depend_on(tmp_path):
    one = made(tmp_path / "a")
    two = made(tmp_path / "b", stub_pairs()[::-1])
    other = made(tmp_path / "c", config=replace(CONFIG, seed=1))

    def keywords(prepared, pair):
        rows = prepared.views[(prepared.views[:, 0] == pair) & (prepared.views[:, 1] == 2), 2]
        return [prepared.texts[row] for row in rows]

    assert all(keywords(one, pair) == keywords(two, 95 - pair) for pair in range(96))
    assert any(keywords(one, pair) != keywords(other, pair) for pair in range(96))


def test_bad_pairs_and_bad_vectors(tmp_path):
    with pytest.raises(CDEError, match="Expected pairs to prepare, found none"):
        made(tmp_path, [])
    with pytest.raises(CDEError, match=r"Pair 1 \(source 's'\): the document is blank"):
        made(tmp_path, [Pair("a", "b", "s", "d"), Pair("a", " ", "s", "d")])
    with pytest.raises(CDEError, match="Expected finite vectors of the surrogate, found others for the text"):
        made(tmp_path, stub_pairs(3), surrogate=lambda texts: np.full((len(texts), 4), np.nan, dtype=np.float32))
    assert not (tmp_path / MANIFEST).exists()


def test_keywords_are_whole_words():
    document = "Türkiye sells 3rd x-ray café machines over __init__ and snake_case"
    drawn = KeywordQueries([document]).draw(document, np.random.default_rng(0))
    assert drawn is not None
    assert set(drawn.split()) <= {"türkiye", "sells", "x-ray", "café", "machines", "over", "and", "snake_case"}
