"""Task prefixes of pairs and of sources: in training texts begin as they do at inference under those prefixes."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from plain_replicas import byte_level
from prepared_stub import stub_pairs, stub_vectors
from tiny import tiny_network, tiny_tokenizer
from tokenizers import decoders
from tokenizers.processors import TemplateProcessing

sys.path.append(str(Path(__file__).parents[1] / "model"))
from golden import V2, tiny_backbones, tokenizer_json, write_folder

from cde_rag import CDEModel
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.clustering.clusters import LAPTOP
from cde_rag_training.config import EvaluationConfig, PhaseConfig, SourceConfig
from cde_rag_training.corpora.batch import Batch
from cde_rag_training.data.pairs import CorpusPassage
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.data.reading import PairReader
from cde_rag_training.data.text_rows import pairs_digest
from cde_rag_training.data.transformations import PLAIN
from cde_rag_training.loop.held_out import retrieval, retrieval_rows
from cde_rag_training.loop.mini_batches import Cutter
from cde_rag_training.loop.prefixes import Prefixes
from cde_rag_training.networks.stages import stages_of
from cde_rag_training.recipe import RecipeError

TOKENIZER = TextTokenizer(tokenizer_json())
FIXTURES = (tiny_backbones,)
QUESTION, ANSWER = "search_query: ", "search_document: "
TASK = "query document: "


def prepared_with(folder, pairs):
    config = PrepareConfig(max_length=32, surrogate="stub", clusters=replace(LAPTOP, size=8), coarse_size=40)
    passages = [CorpusPassage(f"the fish of {name}", "docs", "part 0") for name in ("risk", "rate")]
    return prepare(
        pairs, TOKENIZER, folder, config, surrogate=lambda texts: stub_vectors(list(texts)), passages=passages
    )


@pytest.fixture
def stages(tmp_path, tiny_backbones):
    model = CDEModel.from_pretrained(write_folder(tmp_path / "model", V2), runtime="torch", dtype="float32")
    return stages_of(model.network, model.tokenizer, device="cpu", precision="float32")


def some_pairs():
    """Questions have a task of their own, some documents no prefix; of pages nothing is said."""
    pairs = stub_pairs(30)
    faq = [number for number, pair in enumerate(pairs) if pair.source == "faq"]
    for number in faq:
        prefix = "" if number % 2 else TASK
        negatives = (f"a boat of {number}",)
        pairs[number] = replace(pairs[number], query_prefix=TASK, document_prefix=prefix, hard_negatives=negatives)
    return pairs


def batch_of(prepared, pairs):
    pairs = np.array(pairs)
    return Batch(
        pairs=pairs,
        queries=prepared.queries[pairs],
        documents=prepared.documents[pairs],
        hard_negatives=prepared.hard_negatives[pairs],
        context=np.unique(prepared.documents[pairs]),
        siblings=[[] for _ in pairs],
        transformation=PLAIN,
        corpus="made",
    )


def expected(texts, prefix, length=32):
    return [tokens.ids for tokens in TOKENIZER(texts, length, prefix=prefix)]


def test_texts_begin_as_at_inference(tmp_path, stages):
    """What the model that is loaded with these prefixes reads, for queries, documents, hard negatives and context."""
    pairs = some_pairs()
    prepared = prepared_with(tmp_path / "p", pairs)
    faq = [number for number, pair in enumerate(pairs) if pair.source == "faq"]
    batch = batch_of(prepared, faq)
    cutter = Cutter(prepared, stages, mini_batch_size=4)
    parts = cutter(batch, slice(0, len(faq)))
    concatenated = [ids for part in parts.second for ids in part.ids]
    read = [concatenated[place] for place in parts.order.tolist()]
    size = len(faq)
    assert read[:size] == expected([pairs[number].query for number in faq], TASK)
    for place, number in enumerate(faq):
        prefix, (negative,) = pairs[number].document_prefix, pairs[number].hard_negatives
        assert read[size + place] == expected([pairs[number].document], prefix)[0]
        assert read[2 * size + place] == expected([negative], prefix)[0]
        (first,) = cutter.first_ids([int(prepared.documents[number])], batch)
        assert first == expected([pairs[number].document], prefix)[0]
    docs = [number for number, pair in enumerate(pairs) if pair.source == "docs"]
    prefixes = Prefixes(prepared, (), stages)
    assert prefixes
    assert set(map(str, prefixes.of_queries(np.array(docs)))) == {"None"}
    assert (
        stages.second_ids(prepared.texts[prepared.queries[docs[0]]], QUERY)
        == expected([pairs[docs[0]].query], QUESTION)[0]
    )


def test_byte_pairs_read_a_text_after_the_space_of_its_prefix(stages):
    """The tokenizer of ModernBERT has other tokens for "cat" and " cat", and prepared texts hold the former."""
    trained = byte_level(["[CLS]", "[SEP]"])
    trained.decoder = decoders.ByteLevel()
    trained.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)])
    tokenizer = TextTokenizer(trained.to_str())
    stages = stages_of(stages.network, tokenizer, device="cpu", precision="float32")
    for text in ("cat", "the cat sat", "Über ein[SEP]e Katze, 猫"):
        (prepared, _), *_ = tokenizer([text], 64)
        for prefix in (ANSWER, TASK, ""):
            ids = stages.first_ids(prepared, stages.prefix_ids(prefix))
            assert ids == tokenizer([text], stages.network.config.max_length, prefix=prefix)[0].ids, (text, prefix)


def test_a_recipe_s_source_comes_first(tmp_path, stages):
    prepared = prepared_with(tmp_path / "p", some_pairs())
    sources = (SourceConfig(name="faq", query_prefix=""), SourceConfig(name="docs", document_prefix=TASK))
    prefixes = Prefixes(prepared, sources, stages)
    faq, docs = (np.flatnonzero(prepared.sources == prepared.source_names.index(name)) for name in ("faq", "docs"))
    assert prefixes.of_queries(faq) == [[]] * len(faq)
    assert {str(each) for each in prefixes.of_documents(faq)} == {"[]", str(stages.prefix_ids(TASK))}
    assert prefixes.of_documents(docs) == [stages.prefix_ids(TASK)] * len(docs)
    assert prefixes.of_queries(docs) == [None] * len(docs)
    assert prefixes.of_rows(prepared.passages[:, 0]) == [stages.prefix_ids(TASK)] * 2
    plain = prepared_with(tmp_path / "plain", stub_pairs(30))
    assert plain.prefixes is None
    assert not Prefixes(plain, (), stages)
    ids = plain.texts[plain.documents[0]]
    assert stages.second_ids(ids, DOCUMENT, stages.prefix_ids(ANSWER)) == stages.second_ids(ids, DOCUMENT)


def test_held_out_pairs_are_read_as_the_recipe_trains_them(tmp_path, stages, monkeypatch):
    prepared, read = prepared_with(tmp_path / "p", stub_pairs(30)), []

    def embed(ids, role, given, *, mini_batch_size):
        read.append((role, ids))
        return torch.ones(len(ids), stages.dim)

    monkeypatch.setattr(stages, "embed", embed)
    sources = [SourceConfig(name=name, query_prefix=TASK, document_prefix=ANSWER) for name in ("docs", "gone")]
    sets = retrieval_rows(prepared, EvaluationConfig(), seed=0)
    retrieval(stages, prepared, sets, sources=sources, mini_batch_size=8)
    rows = {each.source: each.queries for each in sets}
    for place, prefix in ((0, stages.prefix_ids(TASK)), (4, None)):  # queries of "docs" and of "faq"
        source = list(rows)[place // 4]
        expected = [stages.second_ids(prepared.texts[row], QUERY, prefix) for row in rows[source]]
        assert read[place] == (QUERY, expected)


def test_what_a_model_cannot_read_is_refused(tmp_path, stages):
    prepared = prepared_with(tmp_path / "p", some_pairs())
    for wrong in ("query ", "query: document", "query: document: "):  # pooled with the text, from the first colon on
        with pytest.raises(RecipeError, match="pools over the tokens after the first colon"):
            Prefixes(prepared, (SourceConfig(name="faq", query_prefix=wrong),), stages)
    one_way = stages_of(tiny_network(), TextTokenizer(tiny_tokenizer()), device="cpu", precision="float32")
    with pytest.raises(RecipeError, match="separates queries from documents by a learned vector"):
        Prefixes(prepared, (), one_way)
    with pytest.raises(RecipeError, match="by a learned vector, found prefixes: 'query: '"):
        Prefixes(
            prepared_with(tmp_path / "q", stub_pairs(30)), (SourceConfig(name="faq", query_prefix="query: "),), one_way
        )
    with pytest.raises(ValueError, match="sources of different names"):
        PhaseConfig(sources=(SourceConfig(name="faq"), SourceConfig(name="faq")))


def test_files_hold_prefixes_and_pairs_without_are_what_they_were():
    rows = [
        {"query": "a", "document": "b", "query_prefix": TASK, "document_prefix": ""},
        {"query": "c", "document": "d"},
    ]
    first, second = PairReader(rows, source="s")
    assert (first.query_prefix, first.document_prefix) == (TASK, "")
    assert (second.query_prefix, second.document_prefix) == (None, None)
    assert pairs_digest([first]) != pairs_digest([replace(first, document_prefix=None)])
    # The digest of these pairs before there were prefixes, by which their views are drawn.
    assert pairs_digest(stub_pairs(3)) == "df4f1bcf66d6ac476fbe3ae3b38fd8facf7e14eef801f6a24cf50aa8cb61ca60"
