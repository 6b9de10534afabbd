"""Adaptation in the small: it goes on where it stopped, and its model stands where the verdict says."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from prepared_stub import stub_vectors
from tiny import WORDS, tiny_network, tiny_tokenizer

from cde_rag.errors import ResumeError
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.records import Record
from cde_rag_training.adapt import adaptation
from cde_rag_training.adapt.adaptation import AdaptationConfig, adapt, recipe_of
from cde_rag_training.adapt.material import Material, MaterialConfig, material
from cde_rag_training.adapt.output_folder import PLAN, REPORT
from cde_rag_training.clustering.packing import PackingConfig
from cde_rag_training.config import LossConfig, PhaseConfig, TrainingConfig
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.data.views import ViewConfig
from cde_rag_training.loop.guard import TrainingError
from cde_rag_training.presets import PRESETS, preset
from cde_rag_training.recipe import RecipeError


def records(count: int = 160) -> list[Record]:
    random = np.random.default_rng(0)
    words = [" ".join(random.choice(WORDS, size=14)) for _ in range(count)]
    return [
        Record(f"r{number}", text, f"{text[:12]} {'bcdefghijk'[number % 10]} {'bcdefghijklmnopqrst'[number % 19]}")
        for number, text in enumerate(words)
    ]


@pytest.fixture(scope="module")
def given() -> Material:
    return material(records(), MaterialConfig(), parent_key=None, name="words")


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdaptationConfig:
    folder = tmp_path / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    monkeypatch.setattr(adaptation, "minilm", lambda max_length: stub_vectors)
    monkeypatch.setattr(adaptation, "_minutes", lambda *_, **__: 0.02)
    return AdaptationConfig(model=str(folder), max_length=32, shares=(0.5, 1.0))


def test_material_has_queries_that_nothing_else_stands_beside(given: Material):
    learned = {one.section.id for one in given.parts.training}
    for part, data in ((given.parts.development, given.development), (given.parts.test, given.test)):
        assert not learned & {one.section.id for one in part}
        assert set(data.queries) == {one.query for one in part}
        assert all(set(judged) <= set(data.corpus.ids) for judged in data.judgments)
    assert len(given.test.corpus.ids) == 160
    assert set(given.kinds) == {"title"}
    assert not given.titled


def test_a_model_that_is_not_better_stands_aside(given: Material, config: AdaptationConfig, tmp_path: Path):
    said: list[str] = []
    output = tmp_path / "mine"
    done = adapt(given, replace(config, encoder_rate=0.0, context_rate=1e-9, gate_rate=0.0), output, say=said.append)
    assert not done.comparison.better
    assert done.comparison.difference.mean == pytest.approx(0, abs=0.02)  # but for int8
    assert done.model == output / "not-better"
    assert not (output / "config.json").exists()
    assert CDEModel.from_pretrained(done.model).identity.name == "mine"
    told = json.loads((output / REPORT).read_text())
    assert told["verdict"].startswith("Keep your model")
    assert told["pairs"]["made"] == {"title": 160}
    assert set(told["shares"]) == {"0.5", "1"}
    assert len(said) == 5
    assert done.updates == told["updates"] > 0
    assert "So few updates teach little" in str(done)
    with pytest.raises(ResumeError, match="finished adaptation"):
        adapt(given, config, output)


def test_the_share_is_chosen_by_development_and_the_better_model_is_the_output(
    given: Material, config: AdaptationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, int]] = []

    def scores(folder: Path, data: object) -> np.ndarray:
        queries = data.queries  # type: ignore[attr-defined]
        asked.append((folder.name, len(queries)))
        return np.full(len(queries), 1.0 if folder.name == "share-0.5" else 0.9)

    monkeypatch.setattr(adaptation, "_scores", scores)
    done = adapt(given, config, tmp_path / "mine")
    assert asked == [("share-0.5", 16), ("share-1", 16), ("share-0.5", 32)]  # the test part once
    assert (done.comparison.share, done.comparison.better) == (0.5, True)
    assert done.model == tmp_path / "mine"
    state = CDEModel.from_pretrained(tmp_path / "mine").network.state_dict()
    for name, value in CDEModel.from_pretrained(tmp_path / "mine/work/share-0.5").network.state_dict().items():
        assert (state[name] == value).all(), name


def test_it_goes_on_where_it_stopped_and_mixes_nothing_in(
    given: Material, config: AdaptationConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    output = tmp_path / "mine"

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(adaptation, "train", stop)
        with pytest.raises(KeyboardInterrupt):
            adapt(given, config, output)
    assert (output / PLAN).is_file()
    made = (output / "work/prepared/tokens.npy").stat().st_mtime_ns
    with pytest.raises(ResumeError, match="other settings"):
        adapt(given, replace(config, seed=1), output)
    other = material(records(170), MaterialConfig(), parent_key=None, name="words")
    with pytest.raises(ResumeError, match="another corpus"):
        adapt(other, config, output)
    adapt(given, replace(config, minutes=config.minutes + 1), output)  # more time is the same adaptation
    assert (output / REPORT).is_file()
    assert (output / "work/prepared/tokens.npy").stat().st_mtime_ns == made


@pytest.mark.parametrize(
    "name",
    [name if name in ("cde-mini", "paper-small") else pytest.param(name, marks=pytest.mark.long) for name in PRESETS],
)
def test_every_preset_adapts(given: Material, config: AdaptationConfig, tmp_path: Path, name: str):
    """Its losses, batches, filter and rates; batches fit the corpus, and model and time are those of the adaptation."""
    recipe = preset(name)
    done = adapt(given, replace(config, recipe=recipe), tmp_path / "mine")
    own = recipe_of(replace(config, recipe=recipe), given, minutes=4.0, name="mine")
    kept = [phase for phase in recipe.phases if not phase.data]
    assert [phase.name for phase in own.phases] == [phase.name for phase in kept]
    for phase, wanted in zip(own.phases, kept, strict=True):
        assert (phase.loss, phase.filter, phase.rates) == (wanted.loss, wanted.filter, wanted.rates)
        size = (phase.packing if phase.batches == "packed" else phase.corpora).batch_size
        assert size <= len(given.parts.training) // 3
        assert phase.schedule.minutes == 4.0 / len(kept)
    assert own.start.model == config.model
    assert done.updates >= len(kept)
    told = json.loads((tmp_path / "mine" / REPORT).read_text())
    assert told["outcome"] == done.comparison.outcome
    assert told["config"]["recipe"]["phases"][-1]["name"] == kept[-1].name


def test_every_loss_and_sampler_adapts(given: Material, config: AdaptationConfig, tmp_path: Path):
    context = ContextConfig(documents="batch", smallest=4, largest=8, null_share=0.0)
    own = ViewConfig(nameless_share=0.0, sentence_share=0.0, keywords_share=0.0)
    losses = [
        LossConfig(kind="graded", temperature=0.1, bias=-3.0),
        LossConfig(kind="improved", dims=(16, 8), layers=(1,)),
        LossConfig(teacher="surrogate", lexical_share=0.3),
    ]
    phases = [
        PhaseConfig(
            name=f"phase {number}",
            batches="corpora" if number % 2 else "packed",
            corpora=replace(CorporaConfig(context=context), **({"views": own} if number % 2 else {})),
            packing=PackingConfig(order="random" if number else "tour", batch_size=16),
            loss=loss,
            batches_per_update=1 + number,
        )
        for number, loss in enumerate(losses)
    ]
    recipe = TrainingConfig(phases=tuple(phases))
    done = adapt(given, replace(config, recipe=recipe), tmp_path / "mine")
    with (tmp_path / "mine/work/run/log.csv").open() as file:
        assert {row["phase"] for row in csv.DictReader(file)} == {phase.name for phase in phases}
    assert done.comparison.outcome in str(done)


def test_a_recipe_of_other_data_alone_is_refused(given: Material, config: AdaptationConfig):
    recipe = TrainingConfig(phases=(PhaseConfig(data="elsewhere"),))
    with pytest.raises(RecipeError, match="a phase for the corpus, found data of their own in all phases"):
        recipe_of(replace(config, recipe=recipe), given, minutes=1.0, name="mine")


def test_a_recipe_for_a_model_without_a_null_context(given: Material, config: AdaptationConfig):
    recipe = TrainingConfig(phases=(PhaseConfig(loss=LossConfig(teacher="start")),))
    (phase,) = recipe_of(replace(config, recipe=recipe), given, minutes=1.0, name="mine", null=False).phases
    assert (phase.corpora.context.null_share, phase.context_dropout, phase.loss.teacher) == (0.0, 0.0, "none")


def test_a_folder_with_other_files_is_refused(given: Material, config: AdaptationConfig, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ResumeError, match="new or empty"):
        adapt(given, config, tmp_path / "mine")


def test_minutes_are_what_is_left_and_are_kept(given: Material, tmp_path: Path):
    config = AdaptationConfig(minutes=10.0, shares=(0.5, 1.0))
    first = adaptation._minutes(config, given, tmp_path, spent=60.0, once=30.0)
    assert first == pytest.approx((600 - 60 - 1.3 * (30 + 2 * (30 + 5))) / 60)
    assert adaptation._minutes(config, given, tmp_path, spent=599.0, once=30.0) == first
    with pytest.raises(TrainingError, match=r"with --minutes (\d+) continues") as error:
        adaptation._minutes(config, given, tmp_path / "b", spent=500.0, once=80.0)
    enough = re.search(r"--minutes (\d+)", str(error.value))
    assert enough is not None
    (tmp_path / "b").mkdir()
    longer = replace(config, minutes=float(enough[1]))
    assert adaptation._minutes(longer, given, tmp_path / "b", spent=500.0, once=80.0) > 1


def test_a_new_first_stage_takes_its_part_of_the_time(given: Material, tmp_path: Path):
    (tmp_path / "minilm").mkdir()
    whole = adaptation._minutes(AdaptationConfig(), given, tmp_path, spent=0.0, once=1.0)
    less = adaptation._minutes(AdaptationConfig(model="minilm"), given, tmp_path / "minilm", spent=0.0, once=1.0)
    assert whole - less == pytest.approx(1.5)


def test_a_model_without_a_null_context_is_never_without_a_context(given: Material):
    (phase,) = recipe_of(AdaptationConfig(), given, minutes=1.0, name="mine", null=False).phases
    assert phase.corpora.context.null_share == phase.context_dropout == 0


def test_a_small_corpus_gets_small_batches(given: Material):
    (phase,) = recipe_of(AdaptationConfig(), given, minutes=1.0, name="mine").phases
    third = len(given.parts.training) // 3
    assert phase.corpora.batch_size == phase.corpora.context.largest == third < 64
    assert phase.schedule.updates == 0
