"""Passages that no pair has: contexts of a corpus and siblings come from them, and hard negatives have siblings too."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import WORDS, tiny_network, tiny_tokenizer
from tiny_run import MACHINE, config, phase, start_folder

from cde_rag.context.siblings import siblings_by_position
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import Corpora, CorporaConfig
from cde_rag_training.corpora.granularity import GranularityConfig
from cde_rag_training.corpora.parent_batches import ParentConfig
from cde_rag_training.data.array_folder import PreparedError
from cde_rag_training.data.layout import check_layout
from cde_rag_training.data.pairs import CorpusPassage, Pair
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.views import OWN
from cde_rag_training.loop.mini_batches import Cutter
from cde_rag_training.loop.training import train
from cde_rag_training.networks.stages import stages_of

PAGES, EACH = 5, 8  # of a domain, passages of a page
DOMAIN = GranularityConfig(cluster=0.0, wide_cluster=0.0, domain=1.0, domains=0.0, source=0.0)
CORPORA = CorporaConfig(
    batch_size=6,
    hard_negatives=2,
    granularity=DOMAIN,
    views=OWN,
    context=ContextConfig(smallest=12, largest=20, null_share=0.0),
    parents=ParentConfig(share=0.0, apart_share=1.0, lone_share=0.0, wrong_share=0.0, siblings=4),
)


def text(domain: str, page: int, place: int) -> str:
    number = 97 * (page * EACH + place) + (7 if domain == "river" else 0)
    return " ".join(WORDS[number // 20**power % 20] for power in range(4)) + f" {domain[0]} {'bcdefghi'[place]}"


def passages() -> list[CorpusPassage]:
    """Of two corpora with pairs, and of one without."""
    return [
        CorpusPassage(text(domain, page, place), "docs", domain, f"{domain} {page}")
        for domain in ("bank", "river", "unasked")
        for page in range(PAGES)
        for place in range(EACH)
    ]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return made(tmp_path_factory.mktemp("prepared"), passages())


def made(folder: Path, given: list[CorpusPassage]) -> Prepared:
    """A pair for every other passage, with two others of the corpus as hard negatives."""
    pairs = [
        Pair(
            " ".join(text(domain, page, place).split()[:2]),
            text(domain, page, place),
            "docs",
            domain,
            f"{domain} {page}",
            (text(domain, page, place + 1), text(domain, (page + 1) % PAGES, 1)),
        )
        for domain in ("bank", "river")
        for page in range(PAGES)
        for place in range(0, EACH, 2)
    ]
    draw = np.random.default_rng(0)
    return prepare(
        pairs,
        TextTokenizer(tiny_tokenizer()),
        folder,
        PrepareConfig(max_length=16, surrogate="random"),
        surrogate=lambda texts: draw.normal(size=(len(texts), 16)).astype(np.float32),
        passages=given,
    )


def test_passages_are_rows_with_domain_and_parent(prepared: Prepared) -> None:
    assert prepared.passages is not None
    assert prepared.passages.shape == (2 * PAGES * EACH, 3)
    known = {(domain, parent) for domain, parent in zip(prepared.domains, prepared.parents, strict=True)}
    assert {(domain, parent) for _, domain, parent in prepared.passages.tolist()} == known
    assert len(np.unique(prepared.passages[:, 0])) == 2 * PAGES * EACH
    assert set(prepared.documents) <= set(prepared.passages[:, 0])
    assert set(prepared.hard_negatives.ravel()) <= set(prepared.passages[:, 0])


def test_without_passages_a_folder_is_what_it_was(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", [])
    assert plain.passages is None
    assert not (tmp_path / "plain/passages.npy").exists()
    nothing = made(tmp_path / "nothing", [passages()[-1]])
    assert nothing.passages is not None
    assert nothing.passages.shape == (0, 3)
    assert np.array_equal(plain.parents, nothing.parents)
    batch = Corpora(plain, CORPORA, seed=0).batch(0)
    assert any(batch.siblings)
    assert batch.hard_negatives.shape == (6, 0)


def test_given_others_they_are_made_again(tmp_path: Path) -> None:
    made(tmp_path, passages())
    fewer = made(tmp_path, passages()[:EACH])
    assert fewer.passages is not None
    assert len(fewer.passages) == EACH


def test_rows_that_are_not_there_are_refused(prepared: Prepared) -> None:
    arrays = {path.stem: np.load(path) for path in prepared.folder.glob("*.npy")}
    check_layout(arrays, where="here")
    arrays["passages"][0, 0] = len(prepared.texts)
    with pytest.raises(PreparedError, match="here: passages"):
        check_layout(arrays, where="here")


def test_contexts_of_a_corpus_are_drawn_from_all_its_passages(prepared: Prepared) -> None:
    assert prepared.passages is not None
    corpora = Corpora(prepared, CORPORA, seed=0)
    seen = set[int]()
    for update in range(30):
        batch = corpora.batch(update)
        domain = prepared.domains[batch.pairs[0]]
        own = set(prepared.passages[prepared.passages[:, 1] == domain, 0].tolist())
        context = batch.context.tolist()
        assert 12 <= len(context) == len(set(context)) <= 20
        assert set(context) <= own - set(batch.documents.tolist())
        seen |= set(context)
    assert seen == set(prepared.passages[:, 0].tolist())


def test_siblings_are_the_nearest_passages_of_the_page(prepared: Prepared) -> None:
    batch = Corpora(prepared, CORPORA, seed=1).batch(0)
    tokenizer = TextTokenizer(tiny_tokenizer())
    page_of = {str(tokenizer([one.text], 16)[0].ids): one for one in passages()}  # decoding would lose unknown words
    assert len(page_of) == len(passages())
    negatives = batch.hard_negatives.ravel().tolist()
    assert batch.hard_negatives.shape == (6, 2)
    assert len(batch.negative_siblings) == len(negatives)
    every = [*batch.documents.tolist(), *negatives]
    for row, siblings in zip(every, [*batch.siblings, *batch.negative_siblings], strict=True):
        own = page_of[str(prepared.texts[row])]
        page = [one.text for one in passages() if one.parent == own.parent]
        expected = [page[place] for place in siblings_by_position(page.index(own.text), EACH, 4)]
        assert [page_of[str(prepared.texts[other])].text for other in siblings] == expected


def test_some_negatives_have_no_siblings(prepared: Prepared) -> None:
    alone = CorporaConfig(**{**vars(CORPORA), "parents": ParentConfig(share=0.0, apart_share=1.0, lone_share=0.5)})
    batches = [Corpora(prepared, alone, seed=0).batch(update) for update in range(40)]
    shares = [bool(group) for batch in batches for group in batch.negative_siblings]
    assert np.mean(shares) == pytest.approx(0.5, abs=0.1)


def test_a_model_trains_on_them(prepared: Prepared, tmp_path: Path) -> None:
    run = config(start_folder(tmp_path / "start"), phase(3, corpora=CORPORA), machine=MACHINE)
    model = train(prepared, run, tmp_path / "run")
    assert (model / "config.json").exists()
    rows = (tmp_path / "run/log.csv").read_text().splitlines()
    place = rows[0].split(",").index("siblings")
    assert all(float(row.split(",")[place]) > 4 * 6 for row in rows[1:])  # of negatives, too


def test_each_process_reads_the_siblings_of_its_negatives(prepared: Prepared) -> None:
    batch = Corpora(prepared, CORPORA, seed=1).batch(0)
    stages = stages_of(tiny_network(), TextTokenizer(tiny_tokenizer()), device="cpu", precision="float32")
    cutter = Cutter(prepared, stages, mini_batch_size=8)
    whole, without = (cutter(one, slice(0, 6)) for one in (batch, replace(batch, negative_siblings=[])))
    assert whole.siblings == without.siblings + sum(map(len, batch.negative_siblings))
    half = cutter(batch, slice(3, 6))
    assert half.siblings == sum(map(len, [*batch.siblings[3:], *batch.negative_siblings[6:]]))
