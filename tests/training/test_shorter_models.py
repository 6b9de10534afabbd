"""2-D Matryoshka embeddings and graded pairs in a run: models of fewer layers that load, and grades from pairs on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub, stub_pairs, stub_vectors
from test_backbones import NATIVE, backbone, start_of
from tiny import tiny_tokenizer
from tiny_run import CORPORA, MACHINE, config, phase, rows, start_folder

from cde_rag import CDEModel
from cde_rag.errors import CorpusError
from cde_rag.models.runtimes.stage_runner import QUERY
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.clustering.clusters import LAPTOP
from cde_rag_training.config import EvaluationConfig, LossConfig
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.data.cluster_report import recluster
from cde_rag_training.data.preparation import PrepareConfig, prepare
from cde_rag_training.loop.training import train
from cde_rag_training.networks.stages import TextBatch, stages_of
from cde_rag_training.recipe import RecipeError

TEXTS = ["the bank of the river", "is the loan in the bank", "fish"]


@pytest.mark.parametrize("kind", ["one_way", *NATIVE])
def test_a_model_of_fewer_layers_embeds_as_training_saw_it(tmp_path, kind):
    prepared, two_way = prepared_stub(tmp_path / "prepared"), kind != "one_way"
    corpora = replace(CORPORA, context=ContextConfig(smallest=4, largest=4, null_share=0.0))
    loss = LossConfig(kind="graded", temperature=0.1, bias=-2.0, dims=(16, 8), layers=(1,))
    start = backbone(tmp_path / "start", kind) if two_way else start_folder(tmp_path / "start")
    run = config(
        start,
        phase(2, loss=loss, corpora=corpora, average=0.0),
        machine=replace(MACHINE, layer_checkpoints=True),
        evaluation=EvaluationConfig(every=0, probe_every=0),
    )
    run = replace(run, start=start_of(start)) if two_way else run
    folder = train(prepared, run, tmp_path / "run")
    model, short = (
        CDEModel.from_pretrained(each, runtime="torch", dtype="float32")
        for each in (folder, tmp_path / "run" / "model-1-layers")
    )
    assert (short.network.config.layers, model.network.config.layers) == (1, 3 if two_way else 2)
    ids = [tokens.ids for tokens in model.tokenizer(TEXTS, 32)]
    found = []
    for each, depth in ((model, 1), (short, None), (model, None)):
        stages = stages_of(each.network, each.tokenizer, device="cpu", precision="float32")
        texts = TextBatch([stages.second_ids(row, QUERY) for row in ids], QUERY, [[]] * 3, layers=depth)
        with torch.no_grad():
            context = stages.read([stages.first_ids(row) for row in ids], mini_batch_size=2)
            found.append(stages.second(texts, stages.prepare(context, [0, 1, 2], [False] * 3)))
    cut, shorter, whole = found
    torch.testing.assert_close(shorter, cut, rtol=1e-5, atol=1e-5)
    assert (whole - cut).abs().max() > 1e-3


def test_depths_that_a_start_lacks_are_refused(tmp_path):
    prepared, start = prepared_stub(tmp_path / "prepared"), start_folder(tmp_path / "start")
    for depths in ((2,), (1, 3)):
        with pytest.raises(RecipeError, match=r"expected loss.layers in 1 … 1, below all layers"):
            train(prepared, config(start, phase(1, loss=LossConfig(layers=depths))), tmp_path / "run")


def test_grades_of_pairs_reach_the_loss(tmp_path):
    """Through preparation and other clusters; pairs without any are prepared as they were."""
    tokenizer, pairs = TextTokenizer(tiny_tokenizer()), stub_pairs(96)
    graded = [replace(pair, grade=number / 95) for number, pair in enumerate(pairs)]
    settings = PrepareConfig(max_length=64, surrogate="stub", clusters=replace(LAPTOP, size=8), coarse_size=32)

    def prepared(given, name):
        return prepare(given, tokenizer, tmp_path / name, settings, surrogate=lambda texts: stub_vectors(list(texts)))

    found, plain = prepared(graded, "graded"), prepared(pairs, "plain")
    assert plain.grades is None
    np.testing.assert_allclose(found.grades, np.arange(96) / 95, rtol=1e-6)
    again = recluster(found, [settings.clusters, settings.clusters], tmp_path / "again")
    assert np.array_equal(again.grades, found.grades)
    start, loss = start_folder(tmp_path / "start"), LossConfig(kind="graded", temperature=0.1, bias=-2.0)
    for data in (found, plain):
        train(data, config(start, phase(1, loss=loss)), tmp_path / f"run-{data.folder.name}")
    losses = [float(rows(tmp_path / f"run-{name}")[-1]["loss"]) for name in ("graded", "plain")]
    assert abs(losses[0] - losses[1]) > 1e-3
    with pytest.raises(CorpusError, match="found 'contrastive', by which a document of grade 0 is a right answer"):
        train(found, config(start, phase(1)), tmp_path / "other")
