"""A run as a whole: it learns, leaves alone what it should, survives a kill at any moment, and says why it stops."""

import csv
import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from prepared_stub import prepared_stub, stub_pairs, stub_vectors
from safetensors.torch import load_file
from tiny import tiny_network, tiny_tokenizer
from tiny_run import CORPORA, MACHINE, RATES, config, phase, rows, start_folder

from cde_rag import CDEModel, Context
from cde_rag.errors import CDEError, CorpusError, ResumeError
from cde_rag.models.tokenizer import TextTokenizer
from cde_rag.stores.files import locked
from cde_rag_training.clustering.clusters import LAPTOP, PAPER
from cde_rag_training.clustering.packing import PackingConfig
from cde_rag_training.config import EvaluationConfig, GuardConfig, LossConfig, RatesConfig
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.corpora.filtering import FilterConfig, FilterWarning
from cde_rag_training.data.preparation import PrepareConfig
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.views import ViewConfig
from cde_rag_training.loop import guard, state, trainer, training_data
from cde_rag_training.loop.gradients import Gradients
from cde_rag_training.loop.guard import ContextIgnoredWarning, TrainingError
from cde_rag_training.loop.held_out import Retrieval
from cde_rag_training.loop.logs import COLUMNS
from cde_rag_training.loop.optimiser import Optimiser
from cde_rag_training.loop.training import train
from cde_rag_training.loop.training_data import opened
from cde_rag_training.presets import PRESETS, preset, preset_text
from cde_rag_training.recipe import RecipeError

OFTEN_NULL = replace(CORPORA, context=replace(CORPORA.context, null_share=0.5))


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A folder with the start, prepared pairs and held-out pairs."""
    folder = tmp_path_factory.mktemp("work")
    start_folder(folder / "start")
    prepared_stub(folder / "prepared")
    prepared_stub(folder / "held_out", stub_pairs(130)[96:])
    return folder


def weights(output):
    return load_file(output / "model" / "model.safetensors")


def same_weights(one, other):
    found, expected = weights(one), weights(other)
    assert found.keys() == expected.keys()
    return all(torch.equal(found[name], expected[name]) for name in expected)


def whole(work, name="whole"):
    """The run that tiny_run.py makes, uninterrupted."""
    if not (work / name).exists():
        subprocess.run([sys.executable, "tests/training/tiny_run.py", work, work / name], check=True, env=environment())
    return work / name


def environment():
    path = os.pathsep.join(str(Path(__file__).parents[level]) for level in (0, 1))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def test_two_runs_do_not_share_a_folder(work, tmp_path):
    with locked(tmp_path / "run.lock", "taken"), pytest.raises(CDEError, match="another run trains in this folder"):
        train(work / "prepared", config(work / "start"), tmp_path)
    train(work / "prepared", config(work / "start", phase(updates=1)), tmp_path)


def test_slow_updates_are_kept_by_the_clock(work, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "SAVE_AFTER", -1.0)
    rare = replace(MACHINE, save_every=1000)
    stop = mock.Mock(side_effect=[*(mock.DEFAULT,) * 3, KeyboardInterrupt])
    update = trainer.Trainer._update

    def interrupted(self, *arguments):
        stop()
        update(self, *arguments)

    monkeypatch.setattr(trainer.Trainer, "_update", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(work / "prepared", config(work / "start", machine=rare), tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "state.safetensors").is_file()
    train(work / "prepared", config(work / "start", machine=rare), tmp_path)
    assert same_weights(tmp_path, whole_of_one_phase(work))


def whole_of_one_phase(work):
    train(work / "prepared", config(work / "start"), work / "one-phase")
    return work / "one-phase"


def test_a_run_leaves_a_model_a_log_and_a_card(work):
    output = whole(work)
    model = CDEModel.from_pretrained(output / "model")
    assert model.config.name == "made"
    log = rows(output)
    with (output / "log.csv").open() as file:
        assert tuple(next(csv.reader(file))) == COLUMNS
    assert [int(row["update"]) for row in log] == [*range(9), *range(9)]
    measured = [row for row in log if row["null_loss"]]
    assert len(measured) >= 4
    for row in measured:
        for other in ("null", "foreign"):
            gain = float(row[f"{other}_loss"]) - float(row["loss"])
            assert float(row[f"{other}_gain"]) == pytest.approx(gain, abs=1e-4)
    assert [bool(row["own_ndcg"]) for row in log] == [int(row["update"]) % 4 == 0 for row in log]
    card = (output / "model" / "README.md").read_text()
    for part in (
        "# made",
        "| docs | 64 |",
        "| faq | 32 |",
        "| start, mean |",
        '"temperature": 0.1',
        "| contrastive | 8 |",
    ):
        assert part in card


@pytest.mark.slow
def test_a_killed_run_ends_as_one_that_was_not(work, tmp_path):
    """Killed whenever the log has grown by some rows, in both phases: weights and log are the same bit by bit."""
    expected = whole(work)
    output, kills = tmp_path / "killed", 0
    for lines in (4, 8, 14, 99):
        process = subprocess.Popen([sys.executable, "tests/training/tiny_run.py", work, output], env=environment())
        while process.poll() is None and not (
            (output / "log.csv").exists() and (output / "log.csv").read_bytes().count(b"\n") > lines
        ):
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += process.wait() == -signal.SIGKILL
    assert kills >= 2
    assert process.returncode == 0
    assert rows(output) == rows(expected)
    assert same_weights(output, expected)


def test_what_is_frozen_stays_and_all_else_moves(work, tmp_path):
    """Nothing is rounded in the state, as it is in the model's file."""
    run = config(work / "start", phase(12, corpora=OFTEN_NULL, average=0.0))
    train(work / "prepared", run, tmp_path)
    found = {name.removeprefix("weights:"): value for name, value in load_file(tmp_path / "state.safetensors").items()}
    before = CDEModel.from_pretrained(work / "start").network.state_dict()
    assert found.keys() == before.keys()
    for name, value in before.items():
        frozen = name.startswith(("embeddings.", "first_stage."))
        assert torch.equal(found[name], value) == frozen, name


def test_a_phase_ends_with_the_average_of_its_weights(work, tmp_path, monkeypatch):
    step, seen = Optimiser.step, []

    def remembered(self, factor):
        if not seen:
            seen.append([value.detach().clone() for value in self.parameters])
        step(self, factor)
        seen.append([value.detach().clone() for value in self.parameters])
        names[:] = self.names

    names = []
    monkeypatch.setattr(Optimiser, "step", remembered)
    train(work / "prepared", config(work / "start", phase(4, average=0.2)), tmp_path)
    found, (expected, *later) = load_file(tmp_path / "state.safetensors"), seen
    for number, values in enumerate(later, start=1):
        decay = min(0.2, number / (number + 9))
        expected = [decay * old + (1 - decay) * new for old, new in zip(expected, values, strict=True)]
    for name, value, last in zip(names, expected, later[-1], strict=True):
        torch.testing.assert_close(found[f"weights:{name}"], value)
        assert not torch.equal(value, last), name


def test_everything_can_be_trained(work, tmp_path):
    rates = RatesConfig(encoder=1e-3, embeddings=1e-3, first_stage=1e-3, context=1e-3)
    run = config(work / "start", phase(12, corpora=OFTEN_NULL, rates=rates, average=0.0))
    train(work / "prepared", run, tmp_path)
    found = load_file(tmp_path / "state.safetensors")
    for name, value in CDEModel.from_pretrained(work / "start").network.state_dict().items():
        assert not torch.equal(found[f"weights:{name}"], value), name


def test_training_lowers_the_loss(work, tmp_path):
    """The same few pairs again and again: the tiny model learns them by heart."""
    prepared = prepared_stub(tmp_path / "prepared", stub_pairs(48))
    shown = ViewConfig(nameless_share=0.0, keywords_share=0.0, sentence_share=0.0)
    one = replace(CORPORA, views=shown)
    rates = RatesConfig(encoder=5e-3, context=5e-3, embeddings=5e-3, first_stage=5e-3)
    run = config(
        work / "start",
        phase(80, corpora=one, rates=rates, average=0.0),
        evaluation=EvaluationConfig(every=0, probe_every=0),
        machine=replace(MACHINE, save_every=100, gradient_caching=False),
    )
    train(prepared, run, tmp_path)
    losses = [float(row["loss"]) for row in rows(tmp_path)]
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:10])


def test_packed_batches_train_too(work, tmp_path):
    """Settings that they do not read are refused, and a card has those alone that the batches were made with."""
    context = ContextConfig(documents="batch", smallest=8, largest=8, null_share=0.0)
    corpora = CorporaConfig(context=context)
    packed = phase(2, name="packed", batches="packed", packing=PackingConfig(batch_size=8), corpora=corpora)
    train(work / "prepared", config(work / "start", packed, phase(2)), tmp_path)
    assert {row["context"] for row in rows(tmp_path) if row["phase"] == "packed"} == {"8"}
    card = (tmp_path / "model" / "README.md").read_text()
    one, other = json.loads(card.split("```json\n")[1].split("```")[0])["phases"]
    assert one["packing"]["batch_size"] == other["corpora"]["batch_size"] == 8
    assert set(one["corpora"]) == {"context", "hard_negatives"}
    assert "packing" not in other
    for change in ({"batch_size": 256}, {"views": ViewConfig(keywords_share=0.0)}):
        with pytest.raises(ValueError, match=f"hard_negatives and context with packed batches, found {min(change)}"):
            replace(packed, corpora=replace(corpora, **change))


def test_a_phase_that_is_finished_is_not_repeated(work, tmp_path, monkeypatch):
    """Nor is anything trained when all of them are: the same model is written again."""
    run = config(work / "start", phase(4, name="one"), phase(5, name="two"))
    train(work / "prepared", run, tmp_path)
    first = weights(tmp_path)
    monkeypatch.setattr(Gradients, "add", None)
    train(work / "prepared", run, tmp_path)
    assert all(torch.equal(value, first[name]) for name, value in weights(tmp_path).items())
    assert [row["phase"] for row in rows(tmp_path) if row["loss"]] == ["one"] * 4 + ["two"] * 5


def test_machine_settings_may_change_when_a_run_goes_on(work, tmp_path, monkeypatch):
    run = config(work / "start", phase(7))
    interrupted(monkeypatch, lambda: train(work / "prepared", run, tmp_path), after=5)
    changed = replace(run, machine=replace(MACHINE, mini_batch_size=3, save_every=2, gradient_caching=False))
    train(work / "prepared", changed, tmp_path)
    assert [int(row["update"]) for row in rows(tmp_path) if row["loss"]] == [1, 2, 3, 4, 5, 6, 7]


def interrupted(monkeypatch, run, *, after):
    """Stop a run in the middle of an update."""
    add = Gradients.add

    def failing(self, batch, update, *, scale):
        if update == after:
            raise KeyboardInterrupt
        return add(self, batch, update, scale=scale)

    monkeypatch.setattr(Gradients, "add", failing)
    with pytest.raises(KeyboardInterrupt):
        run()
    monkeypatch.undo()


def test_another_config_or_other_data_is_not_mixed_in(work, tmp_path):
    run = config(work / "start", phase(2))
    train(work / "prepared", run, tmp_path)
    with pytest.raises(ResumeError, match=r"phases\[0\]\.loss\.temperature was 0\.1, is 0\.2"):
        train(work / "prepared", config(work / "start", phase(2, loss=LossConfig(temperature=0.2))), tmp_path)
    with pytest.raises(ResumeError, match=r"data\[0\] was"):
        train(work / "held_out", run, tmp_path)
    (tmp_path / "state.safetensors").write_bytes(b"damaged")
    with pytest.raises(ResumeError, match="Expected a checkpoint"):
        train(work / "prepared", run, tmp_path)


def test_a_full_disk_leaves_the_checkpoint_before_it(work, tmp_path, monkeypatch):
    """The write fails half-way, as on a full disk; with space again the run goes on from the checkpoint before it."""
    expected = tmp_path / "expected"
    run = config(work / "start", phase(8, average=0.0))
    train(work / "prepared", run, expected)
    written, write = [], state.write_durably

    def full(path, data):
        if len(written) == 1:
            path.with_name(f".{path.name}.tmp").write_bytes(data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        write(path, data)

    monkeypatch.setattr(state, "write_durably", full)
    with pytest.raises(TrainingError, match=r"update 6 could not be written \(No space left on device\).* is intact"):
        train(work / "prepared", run, tmp_path / "full")
    monkeypatch.undo()
    train(work / "prepared", run, tmp_path / "full")
    assert rows(tmp_path / "full") == rows(expected)
    assert same_weights(tmp_path / "full", expected)


def test_a_loss_that_is_no_number_stops_and_saves_the_batch(work, tmp_path, monkeypatch):
    add = Gradients.add

    def spoiled(self, batch, update, *, scale):
        figures = add(self, batch, update, scale=scale)
        return figures._replace(total=float("nan")) if update == 4 else figures

    monkeypatch.setattr(Gradients, "add", spoiled)
    with pytest.raises(TrainingError, match=r"Update 5: expected finite numbers, found a loss of nan.*batch-5\.json"):
        train(work / "prepared", config(work / "start"), tmp_path)
    batch = json.loads((tmp_path / "batch-5.json").read_text())
    assert len(batch["queries"]) == len(batch["documents"]) == len(batch["siblings"]) == 8
    assert all(" " in text for text in batch["documents"])
    assert [int(row["update"]) for row in rows(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("error", "machine", "advice"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), MACHINE, r"Lower machine\.mini_batch_size, to 4"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), MACHINE, "mini-batches of 8 texts"),
        (MemoryError(), replace(MACHINE, mini_batch_size=1), "a smaller max_length"),
        (MemoryError(), replace(MACHINE, gradient_caching=False), r"Turn machine\.gradient_caching on"),
    ],
)
def test_out_of_memory_says_which_setting_to_change(work, tmp_path, monkeypatch, error, machine, advice):
    def greedy(self, batch, update, *, scale):
        raise error

    monkeypatch.setattr(Gradients, "add", greedy)
    with pytest.raises(TrainingError, match=rf"Out of memory at update 1.*{advice}"):
        train(work / "prepared", config(work / "start", machine=machine), tmp_path)


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match="shapes"), guard.enough_memory(MACHINE, 1):
        raise RuntimeError("shapes differ")


def gains_of(action, gains):
    watch = guard.ContextGuard(GuardConfig(action=action, after=5, window=4))
    for update, gain in enumerate(gains, start=1):
        watch.look(gain, update)
    return watch


def test_the_guard_stops_where_the_context_is_ignored():
    noise = [0.1, -0.1, 0.08, -0.09, 0.1, -0.1, 0.05]
    with pytest.raises(TrainingError, match=r"Update 5: the context is being ignored.*guard\.after"):
        gains_of("stop", noise)
    with pytest.warns(ContextIgnoredWarning) as warned:
        gains_of("warn", noise)
    assert len(warned) == 1
    assert gains_of("none", noise).gains == tuple(noise[-4:])
    gains_of("stop", noise[:4])  # too early to say
    gains_of("stop", [gain + 1 for gain in noise])


def test_the_guard_watches_a_run(work, tmp_path):
    one = replace(CORPORA, context=ContextConfig(smallest=4, largest=8, null_share=0.0))
    run = config(
        work / "start",
        phase(8, corpora=one),
        guard=GuardConfig(action="stop", after=1, window=2, errors=1e6),
        evaluation=EvaluationConfig(every=0, probe_every=1),
    )
    with pytest.raises(TrainingError, match="Update 2: the context is being ignored"):
        train(work / "prepared", run, tmp_path)


def test_the_share_goes_back_to_the_start(work, tmp_path):
    """Share 0 has the start's encoder; the path of the context stays as trained."""
    for share in (0.0, 1.0):
        train(work / "prepared", config(work / "start", share=share), tmp_path / str(share))
    none, all_of_it = (
        CDEModel.from_pretrained(tmp_path / name / "model").network.state_dict() for name in ("0.0", "1.0")
    )
    start = CDEModel.from_pretrained(work / "start").network.state_dict()
    for name, value in start.items():
        if name.startswith("second_stage.layers."):
            torch.testing.assert_close(none[name], value, msg=name)
        else:
            assert torch.equal(none[name], all_of_it[name]), name


def test_settings_that_cannot_be_trained_with(work, tmp_path):
    rates = RatesConfig(embeddings=1e-5)
    with pytest.raises(RecipeError, match="expected a first stage that is trained where the embeddings are"):
        train(work / "prepared", config(work / "start", phase(rates=rates)), tmp_path)
    (tmp_path / "other").mkdir()
    text = (work / "start" / "tokenizer.json").read_text().replace('"bank"', '"bang"')
    from cde_rag.models.one_way import checkpoint as checkpoints

    checkpoints.write(tmp_path / "other", tiny_network(), text)
    with pytest.raises(CorpusError, match="expected token ids of the start's tokenizer"):
        train(work / "prepared", config(tmp_path / "other"), tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"loss": LossConfig(dims=(17, 8))}, r"'late': expected loss\.dims of at most 16"),
        ({"loss": LossConfig(teacher="start", lexical_share=0.5)}, "'late': expected BM25 weights"),
        ({"loss": LossConfig(teacher_sources=("cats",))}, "'late': loss.teacher_sources names 'cats'"),
        ({"corpora": replace(CORPORA, batch_size=500)}, "Expected 504 pairs or more of each source"),
    ],
)
def test_a_later_phase_that_cannot_be_trained_is_refused_at_once(work, tmp_path, fields, message):
    with pytest.raises(CDEError, match=message):
        train(work / "prepared", config(work / "start", phase(), phase(name="late", **fields)), tmp_path)
    assert not (tmp_path / "log.csv").exists()


def test_a_surrogate_that_is_the_start_is_warned_of(work, tmp_path):
    """Surrogate embeddings that are the start's own vectors, and the paper's rule: nothing is left to learn."""
    pairs = stub_pairs()
    prepared = prepared_stub(tmp_path / "prepared", pairs)
    model = CDEModel.from_pretrained(work / "start", dtype="float32")
    given = model.prepare(Context.null(model))
    for name, rows_, role in (("query", prepared.queries, 0), ("document", prepared.documents, 1)):
        lone = [model.stages.embed([prepared.texts[row]], role, given, None, None) for row in rows_.tolist()]
        vectors = np.concatenate(lone)
        object.__setattr__(prepared, f"{name}_vectors", vectors.astype(np.float16))
    views = prepared.views
    object.__setattr__(prepared, "views", views[views[:, 1] == 0])
    run = config(work / "start", phase(1, filter=FilterConfig(margin=0.0)))
    with pytest.warns(FilterWarning, match="nothing is left to learn"):
        train(prepared, run, tmp_path / "run")


def test_training_needs_none_of_what_prepares(work, tmp_path):
    """On a bare machine: faiss, bm25s, pyarrow, sentence-transformers and the like cannot be imported."""
    code = f"""
import sys
for name in "faiss bm25s pyarrow sentence_transformers datasets pandas sklearn datasketch".split():
    sys.modules[name] = None
from pathlib import Path
from tiny_run import config, phase
from cde_rag_training.loop.training import train
from cde_rag_training.data.views import ViewConfig
work, output = Path({str(work)!r}), Path({str(tmp_path)!r})
train(work / "prepared", config(work / "start", phase(2)), output, held_out=work / "held_out")
"""
    subprocess.run([sys.executable, "-c", code], check=True, env=environment())
    assert (tmp_path / "model" / "README.md").exists()


def test_tensorboard_has_the_same_figures(work, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(work / "prepared", config(work / "start", phase(3), machine=replace(MACHINE, tensorboard=True)), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    drawn = [(event.step, round(event.value, 3)) for event in events.Scalars("loss")]
    assert drawn == [(int(row["update"]), round(float(row["loss"]), 3)) for row in rows(tmp_path)]


def test_retrieval_means():
    from cde_rag_training.loop.held_out import mean_of

    assert mean_of({"a": Retrieval(0.2, 0.1, 0.0), "b": Retrieval(0.4, 0.3, 1.0)}) == pytest.approx((0.3, 0.2, 0.5))
    assert RATES.first_stage == 0


def test_pairs_are_prepared_first(work, tmp_path, monkeypatch):
    """A list of pairs or a file of them; a second call finds them prepared and asks the surrogate for nothing."""
    asked = []

    def surrogate(*, max_length):
        asked.append(max_length)
        return lambda texts: stub_vectors(list(texts))

    monkeypatch.setattr(training_data, "minilm", surrogate)
    pairs = stub_pairs(60)
    with (tmp_path / "pairs.jsonl").open("w") as file:
        for pair in pairs:
            row = {"query": pair.query, "document": pair.document, "source": pair.source, "domain": pair.domain}
            file.write(json.dumps(row | {"parent": pair.parent}) + "\n")
    run = config(work / "start", phase(2), prepare=PrepareConfig(max_length=32))
    for name, data in (("list", pairs), ("file", tmp_path / "pairs.jsonl")):
        train(data, run, tmp_path / name, held_out=stub_pairs(90)[60:])
        train(data, run, tmp_path / name, held_out=stub_pairs(90)[60:])
    assert asked == [32] * 4  # data and held-out data of both runs
    assert Prepared.load(tmp_path / "list" / "prepared").settings["surrogate"] == "minilm-32"  # as it was, in the card
    for setting in ("surrogate", "filter_surrogate"):
        other = replace(run, prepare=replace(run.prepare, **{setting: "bge"}))
        with pytest.raises(RecipeError, match=f"prepare.{setting} 'bge', found pairs, which are prepared with MiniLM"):
            train(pairs, other, tmp_path / "other")
    assert same_weights(tmp_path / "list", tmp_path / "file")
    log = rows(tmp_path / "list")
    assert next(row for row in log if row["update"] == "0")["own_ndcg"]
    agreeing = config(work / "start", phase(1, filter=FilterConfig(rule="agreement")))
    train(pairs, agreeing, tmp_path / "agreeing")
    assert (tmp_path / "agreeing" / "prepared" / "lexical_query_words.npy").exists()


def test_presets_follow_the_commands_in_their_comments(work):
    """Two-way models have no gates; data that `prepare` made with any seed is that of [prepare], other data is not."""
    for name in PRESETS:
        recipe = preset(name)
        if recipe.start.attention == "two_way":
            assert {one.rates.gates for one in recipe.phases} == {RatesConfig().gates}
        (command,) = (line for line in preset_text(name).splitlines() if " prepare pairs.jsonl " in line)
        clusters = PAPER if "--paper" in command else LAPTOP
        made = PrepareConfig(max_length=int(command.split("--max-length ")[1].split()[0]), clusters=clusters)
        for seed in (0, 7):
            asked = replace(
                made, surrogate=f"minilm-{made.max_length}", clusters=replace(clusters, seed=seed), seed=seed
            )
            opened(given(work, asked), recipe_tokenizer(work), recipe.prepare, work)
    other = replace(made, max_length=24)
    with pytest.raises(RecipeError, match=r"prepared with max_length 64, as .* found 24 in .*Prepare it again"):
        opened(given(work, other), recipe_tokenizer(work), preset("paper-small").prepare, work)
    at_ease = replace(other, max_length=64, clusters=LAPTOP)
    with pytest.raises(RecipeError, match=r"prepared with clusters .*'steps': 100.* found .*'steps': 25"):
        opened(given(work, at_ease), recipe_tokenizer(work), preset("paper-small").prepare, work)


def given(work, settings):
    """The prepared data, as if with other settings."""
    return replace(Prepared.load(work / "prepared"), settings=json.loads(json.dumps(asdict(settings))))


def recipe_tokenizer(work):
    tokenizer = TextTokenizer(tiny_tokenizer())
    object.__setattr__(tokenizer, "sha256", Prepared.load(work / "prepared").tokenizer_sha256)
    return tokenizer


def test_a_foreign_context_is_of_another_source(work, tmp_path, monkeypatch):
    """Or, of one source only, holds no document of the batch or its context."""
    seen, losses_under = [], Gradients.losses_under

    def watched(self, batch, contexts):
        seen.append((batch, contexts[-1]))
        return losses_under(self, batch, contexts)

    monkeypatch.setattr(Gradients, "losses_under", watched)
    one_source = prepared_stub(tmp_path / "one", [replace(pair, source="docs") for pair in stub_pairs()])
    for prepared in (Prepared.load(work / "prepared"), one_source):
        seen.clear()
        train(prepared, config(work / "start", phase(8)), tmp_path / prepared.folder.name / "run")
        assert len(seen) >= 2
        for batch, foreign in seen:
            assert len(foreign.context)
            assert not set(foreign.context) & {*batch.context, *batch.documents}
            if prepared is not one_source:
                assert prepared.sources[foreign.pairs[0]] != prepared.sources[batch.pairs[0]]
