"""Figures of a pair: halves put together are the pair, and projections and vocabularies are compared rightly."""

import numpy as np
import pytest
from made_sets import write_set
from tiny import WORDS, tiny_network, tiny_tokenizer
from tiny_e5 import PIECES, write_e5
from tokenizers import Tokenizer

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.evaluation.beir import read_beir
from cde_rag.model import checkpoints, model_files
from cde_rag_training.data.pairs import Pair
from cde_rag_training.networks.e5_file import E5File
from cde_rag_training.networks.pairing import make_pair
from lab.experiments import pair_figures
from lab.experiments.laboratory import score
from lab.experiments.pair_figures import pair_rows
from lab.experiments.projection_agreement import agreement
from lab.experiments.vocabulary_cut import cut_row


@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_halves_put_together_are_the_pair(tmp_path, monkeypatch):
    monkeypatch.setattr(model_files, "BUNDLED", tmp_path / "bundled")
    checkpoints.write(tmp_path / "bundled" / "tiny", tiny_network(), tiny_tokenizer())
    file = E5File.read(write_e5(tmp_path, dim=96, layers=1, intermediate=1536, positions=512))
    random = np.random.default_rng(0)
    pairs = [Pair(*(" ".join(random.choice(WORDS, size=n)) for n in (3, 8)), "s", "d") for _ in range(120)]
    folder = make_pair(file, pairs, np.arange(len(PIECES)), tmp_path / "made", first="tiny")
    model = CDEModel.from_pretrained(folder, device="cpu", dtype="float32")

    def plain(texts):
        return np.stack([np.bincount([len(text) % 7], minlength=7) for text in texts]).astype("f4")

    monkeypatch.setattr(pair_figures, "minilm", lambda max_length: plain)
    write_set(tmp_path / "river", seed=0, words=WORDS[:12])
    sets = [read_beir(tmp_path / "river")]
    rows = pair_rows(sets, model, tmp_path / "cache", axes={"all": np.eye(112, dtype="f4")})
    found = {(row.corpus, row.model, row.given, row.against): row.ndcg for row in rows}
    embedders = {
        "null": ContextualEmbedder(model, Context.null(model)),
        "context": ContextualEmbedder.from_corpus(sets[0].corpus.texts, model=model, context_size=512, seed=0),
    }
    for given, embedder in embedders.items():
        vectors = embedder.embed_queries(sets[0].queries), embedder.embed_documents(sets[0].corpus.texts)
        assert found["river", "made", given, "minilm"] == pytest.approx(score(sets[0], *vectors).mean(), abs=0.02)
    assert found["river", "made, all", "null", "tiny"] == pytest.approx(
        found["river", "made", "null", "tiny"], abs=1e-6
    )
    assert (
        found["mean", "minilm", "", "minilm"]
        == score(sets[0], plain(sets[0].queries), plain(sets[0].corpus.texts)).mean()
    )
    assert {row.model for row in rows} == {"minilm", "multilingual-e5-small", "tiny", "made", "made, all"}


def test_agreement_is_the_share_of_neighbours_that_stay():
    random = np.random.default_rng(0)
    queries, documents = (random.normal(size=(size, 12)).astype("f4") for size in (20, 50))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    assert agreement(queries, documents, np.eye(12, dtype="f4")) == 1
    half = agreement(queries, documents, np.eye(12, dtype="f4")[:, :6])
    assert 0.2 < half < 0.9
    assert half > agreement(queries, documents, np.eye(12, dtype="f4")[:, :1])


def test_the_cut_is_compared_piece_by_piece(tmp_path):
    file = E5File.read(write_e5(tmp_path))
    whole = Tokenizer.from_str(file.tokenizer())
    kept = np.array([place for place, piece in enumerate(PIECES) if piece not in ("▁loan", "河", "▁河")])
    cut = Tokenizer.from_str(file.tokenizer(kept))
    row = cut_row("made", ["the river", "the loan", "河", "water"], whole, cut)
    assert (row.texts, row.same_texts) == (4, 0.5)
    assert row.unknown_before == 0
    assert row.unknown > 0
    assert row.tokens > 1
