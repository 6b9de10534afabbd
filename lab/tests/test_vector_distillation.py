"""A student learns a teacher's embeddings from shards, and a killed run ends as one that was not."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import CorpusError, ResumeError
from cde_rag.evaluation.beir import Corpus, RetrievalSet
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY
from cde_rag_training.data.pairs import Pair
from lab.distil.development_curve import CURVE, mean_ndcg
from lab.distil.student import write_float32
from lab.distil.target_axes import aligned, projection_axes
from lab.distil.teacher_shards import TeacherShards, write_texts
from lab.distil.training_texts import TrainingText, training_texts
from lab.distil.vector_distillation import (
    MODEL,
    START,
    STATE,
    DistillationRun,
    ShardBatches,
    VectorDistillationConfig,
)

CONFIG = VectorDistillationConfig(batch_size=8, rate=3e-3, warmup=2, average=0.9, precision="float32")
SHARD = 40


class WordTeacher:
    """Embeds a text by its words; queries and documents a little differently."""

    dim = 20
    fingerprint = "f" * 64

    def __init__(self):
        self.embedded = 0

    def _vectors(self, texts, role):
        self.embedded += len(texts)
        counts = np.array([[text.split().count(word) for word in WORDS[:20]] for text in texts], dtype="f4")
        vectors = counts + np.float32(0.3) + np.float32(0.1) * role
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def embed_queries(self, texts):
        return self._vectors(texts, QUERY)

    def embed_documents(self, texts):
        return self._vectors(texts, DOCUMENT)


def drawn_texts(count=200, *, seed=0):
    random = np.random.default_rng(seed)
    found = {}
    while len(found) < count:
        words = random.choice(WORDS[:20], size=random.integers(2, 9))
        found[TrainingText(" ".join(words), int(random.integers(2)))] = None
    return list(found)


def development():
    """A small set whose relevant documents share most words with their queries."""
    texts = [each.text for each in drawn_texts(30, seed=5)]
    ids = tuple(f"d{number}" for number in range(len(texts)))
    queries = tuple(" ".join(text.split()[:-1]) for text in texts[:10])
    judged = tuple({f"d{number}": 1} for number in range(10))
    return [RetrievalSet(Corpus("made", ids, tuple(texts)), tuple(f"q{n}" for n in range(10)), queries, judged)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    return write_texts(drawn_texts(), folder, teacher="words", space=WordTeacher.fingerprint, shard_size=SHARD)


def run_in(folder, shards, *, config=CONFIG, continued=None, sets=None):
    folder.mkdir(exist_ok=True)
    if not (folder / START).exists():
        write_float32(folder / START, tiny_network(), tiny_tokenizer())
    sets = development() if sets is None else sets
    return DistillationRun(shards, folder, config, teacher=WordTeacher, development=sets, continued=continued)


def model_tensors(folder):
    return CDEModel.from_pretrained(folder / MODEL, device="cpu", dtype="float32").network.state_dict()


def test_texts_are_those_of_the_pairs_cut_and_once():
    document = "One sentence is long enough here. Another sentence is as long as it. A third one follows them now."
    pairs = [Pair(f"query {number}", f"{document} {number % 2}", "s", "d", parent="Page") for number in range(4)]
    found = training_texts(pairs, reach=lambda texts: [60] * len(texts), seed=0)
    assert len(set(found)) == len(found)
    assert sorted(each.text for each in found if each.role == QUERY) == ["Page", *(f"query {n}" for n in range(4))]
    told = [each.text for each in found if each.role == DOCUMENT]
    assert document[:60].strip() in told
    assert all(text in document for text in told)
    assert len(told) > 1  # a sentence too
    assert training_texts(pairs, reach=lambda texts: [60] * len(texts), seed=0) == found
    with pytest.raises(CorpusError, match="Expected training pairs, found none"):
        training_texts([], reach=lambda texts: [], seed=0)


def test_the_teacher_embeds_a_shard_once(tmp_path):
    texts, teacher = drawn_texts(90), WordTeacher()
    shards = write_texts(texts, tmp_path, teacher="words", space=teacher.fingerprint, shard_size=SHARD)
    assert [len(shards.read(number)) for number in range(3)] == [40, 40, 10]
    assert [each for number in range(3) for each in shards.read(number)] == texts
    first = shards.vectors(1, lambda: teacher)
    expected = [
        (teacher.embed_queries if each.role == QUERY else teacher.embed_documents)([each.text])[0] for each in texts
    ]
    np.testing.assert_allclose(first, expected[40:80], atol=1e-3)
    embedded = teacher.embedded
    again = write_texts(texts, tmp_path, teacher="words", space=teacher.fingerprint, shard_size=SHARD)
    np.testing.assert_array_equal(again.vectors(1, lambda: teacher), first)
    assert teacher.embedded == embedded
    assert [again.is_embedded(number) for number in range(3)] == [False, True, False]


def test_changed_shards_and_another_teacher_are_refused(tmp_path):
    shards = write_texts(drawn_texts(50), tmp_path, teacher="words", space="another", shard_size=SHARD)
    with pytest.raises(ResumeError, match="was prepared for words with the space another"):
        shards.vectors(0, WordTeacher)
    (tmp_path / f"{shards.names[0]}.jsonl").write_text('[0, "other"]\n')
    with pytest.raises(CorpusError, match="the content is not the one that its name"):
        shards.read(0)
    with pytest.raises(CorpusError, match=r"Run python -m lab\.distil prepare"):
        TeacherShards(tmp_path / "nothing")
    (tmp_path / "texts.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(CorpusError, match="format 2, expected 1"):
        TeacherShards(tmp_path)


def test_damaged_embeddings_are_told(tmp_path):
    shards = write_texts(drawn_texts(50), tmp_path, teacher="words", space=WordTeacher.fingerprint, shard_size=SHARD)
    shards.vectors(0, WordTeacher)
    (path,) = tmp_path.glob("*.npy")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorpusError, match="Delete it; it is computed again"):
        shards.vectors(0, WordTeacher)


@pytest.mark.parametrize("kind", ["leading", "principal"])
def test_a_projection_of_vectors_that_need_no_more_dimensions_keeps_all_scores(kind):
    random = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.pad(torch.randn(60, 8, generator=random), (0, 12))
    is_query = (torch.arange(60) % 2).float()
    axes = projection_axes(vectors, is_query, 8, kind)
    torch.testing.assert_close(axes.T @ axes, torch.eye(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(vectors @ axes @ axes.T @ vectors.T, vectors @ vectors.T, atol=1e-3, rtol=1e-4)


def test_principal_axes_keep_more_than_the_leading_ones():
    random = torch.Generator().manual_seed(1)
    vectors = torch.randn(200, 20, generator=random) * torch.linspace(0.1, 2, 20)
    is_query = (torch.arange(200) % 2).float()
    kept = {kind: (vectors @ projection_axes(vectors, is_query, 6, kind)).norm() for kind in ("leading", "principal")}
    assert kept["principal"] > 2 * kept["leading"]
    with pytest.raises(CorpusError, match="for 6 axes, found 5 and 20"):
        projection_axes(vectors[:5], is_query[:5], 6, "principal")


def test_alignment_changes_no_score_and_finds_a_student_that_is_the_target_turned():
    random = torch.Generator().manual_seed(2)
    vectors = torch.nn.functional.normalize(torch.randn(100, 12, generator=random) + 0.5, dim=1)
    turned = vectors @ torch.linalg.qr(torch.randn(12, 12, generator=random))[0]
    space, shift = aligned(torch.eye(12), vectors, turned)
    targets = space.targets(vectors)
    torch.testing.assert_close(targets @ targets.T, vectors @ vectors.T, atol=1e-5, rtol=0)
    torch.testing.assert_close(targets, turned, atol=1e-4, rtol=0)
    assert shift.abs().max() < 1e-4


def test_the_shift_gives_the_student_the_targets_mean():
    random = torch.Generator().manual_seed(3)
    common = torch.nn.functional.normalize(torch.randn(12, generator=random), dim=0)
    own = torch.nn.functional.normalize(torch.randn(200, 12, generator=random), dim=1)
    vectors = torch.nn.functional.normalize(own + 2 * common, dim=1)
    space, shift = aligned(torch.eye(12), vectors, own)
    targets = space.targets(vectors)
    before = (own * targets).sum(1).mean()
    after = (torch.nn.functional.normalize(own + shift, dim=1) * targets).sum(1).mean()
    assert after > before + 0.2
    assert after > 0.9


def test_every_text_is_in_one_batch_of_its_role_in_each_pass():
    random = np.random.default_rng(0)
    roles = [random.integers(2, size=size).tolist() for size in (30, 17)]
    counts = [(row.count(QUERY), row.count(DOCUMENT)) for row in roles]
    order = ShardBatches(counts, 8, seed=0)
    total = sum(-(-count // 8) for shard in counts for count in shard)
    seen = {}
    for update in range(2 * total):
        position = order.position(update)
        batches = order.batches(position, roles[position.shard], [1] * len(roles[position.shard]))
        chosen = batches[position.batch]
        assert len({roles[position.shard][place] for place in chosen}) == 1
        seen.setdefault(position[:2], []).extend(chosen)
        assert order.ends_shard(update) == (position.batch == len(batches) - 1)
    assert {key: sorted(places) for key, places in seen.items()} == {
        (epoch, shard): list(range(len(row))) for epoch in range(2) for shard, row in enumerate(roles)
    }
    assert seen[0, 0] != seen[1, 0]
    assert [order.texts_before(update) for update in (0, total, 2 * total)] == [0, 47, 94]


def test_the_student_learns_the_teacher_and_only_what_is_trained_changes(tmp_path, shards):
    points = run_in(tmp_path, shards).train(8 * shards.texts, evaluate_every=5)
    assert points[-1].centred_cosine > points[1].centred_cosine + 0.2
    assert points[-1].loss < points[1].loss / 2
    assert points[-1].ndcg[0] > points[0].ndcg[0]
    assert [point.texts for point in points] == [200 * number for number in range(9)]
    moved, trained = model_tensors(tmp_path), load_file(tmp_path / STATE)
    start = CDEModel.from_pretrained(tmp_path / START, device="cpu", dtype="float32").network.state_dict()
    for name, value in start.items():
        if name.startswith(("second_stage.layers.", "second_stage.roles")):
            assert not torch.equal(trained[f"weights:{name}"], value), name
        else:
            assert f"weights:{name}" not in trained, name
            torch.testing.assert_close(moved[name], value, atol=0.02, rtol=0)  # int8 in the file


def test_the_start_is_already_near_its_targets(tmp_path, shards):
    run = run_in(tmp_path, shards)
    assert run.train(SHARD)[0].updates == 0
    first = run_in(tmp_path / "other", shards, config=replace(CONFIG, rate=1e-9)).train(SHARD, evaluate_every=1)[-1]
    assert first.cosine > 0.6  # the shift and the rotation; random 16-dimensional vectors have 0 in the mean


@pytest.mark.parametrize("stop", [3, 12, 33])
def test_a_killed_run_ends_bit_by_bit_as_one_that_was_not(tmp_path, shards, stop):
    def kill(update, loss):
        if update == stop:
            raise KeyboardInterrupt

    run_in(tmp_path / "whole", shards).train(300, evaluate_every=2)
    with pytest.raises(KeyboardInterrupt):
        run_in(tmp_path / "parts", shards).train(300, evaluate_every=2, save_every=4, log=kill)
    seen: list[int] = []
    resumed = run_in(tmp_path / "parts", shards)
    assert stop - 4 <= resumed.updates <= stop
    resumed_from = resumed.updates
    resumed.train(300, evaluate_every=2, log=lambda update, loss: seen.append(update))
    assert seen[0] == resumed_from + 1
    expected, found = model_tensors(tmp_path / "whole"), model_tensors(tmp_path / "parts")
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    columns = [
        [line.split(",")[:2] + line.split(",")[3:] for line in (tmp_path / name / CURVE).read_text().splitlines()]
        for name in ("whole", "parts")
    ]
    assert columns[0] == columns[1]


def test_exported_weights_go_on_where_they_were(tmp_path, shards):
    first = run_in(tmp_path / "first", shards)
    first.train(200, evaluate_every=1)
    file = first.export_weights(tmp_path / "weights.safetensors")
    second = run_in(tmp_path / "second", shards, continued=file)
    assert second.texts == 200
    begun = second.train(201, evaluate_every=1)
    assert begun[0].texts == 200
    assert begun[0].ndcg == pytest.approx(first.train(200)[-1].ndcg, abs=0.05)
    expected, found = model_tensors(tmp_path / "first"), model_tensors(tmp_path / "second")
    assert max(float((found[name] - value).abs().max()) for name, value in expected.items()) < 0.5
    assert begun[-1].texts == 240
    with pytest.raises(ResumeError, match="continued was"):
        run_in(tmp_path / "second", shards)
    with pytest.raises(ResumeError, match="other projection"):
        run_in(tmp_path / "third", shards, config=replace(CONFIG, projection="leading"), continued=file)


def test_another_run_is_not_mixed_in(tmp_path, shards):
    run_in(tmp_path, shards).train(40)
    assert (tmp_path / STATE).exists()
    with pytest.raises(ResumeError, match=r"rate was 0\.003, is 0\.1"):
        run_in(tmp_path, shards, config=replace(CONFIG, rate=0.1))
    with pytest.raises(CorpusError, match="expected a curve over no sets"):
        run_in(tmp_path, shards, sets=[]).train(80)
    with pytest.raises(ValueError, match="layer_decay"):
        replace(CONFIG, layer_decay=0.0)


def test_the_model_is_what_the_curve_measured(tmp_path, shards):
    point = run_in(tmp_path, shards).train(200, evaluate_every=5)[-1]
    model = CDEModel.from_pretrained(tmp_path / MODEL, device="cpu", dtype="float32")
    embedder = ContextualEmbedder(model, Context.null(model))
    (data,) = development()
    found = mean_ndcg(data, embedder.embed_queries(data.queries), embedder.embed_documents(data.corpus.texts))
    assert found == pytest.approx(point.ndcg[0], abs=0.05)  # int8 in the file
