"""A recipe says what it says: every key exists, every value fits, and what it leaves out keeps its default."""

from dataclasses import replace

import pytest

from cde_rag_training.config import PhaseConfig, RatesConfig, ScheduleConfig, StartConfig, TrainingConfig
from cde_rag_training.recipe import RecipeError

RECIPE = """
seed = 3
[start]
name = "mine"
[[phases]]
name = "weak"
context_dropout = 0
[phases.schedule]
updates = 7
[phases.corpora.parents]
passages = [2, 4]
[phases.corpora.context]
documents = "batch"
[[phases]]
[phases.loss]
dims = [384, 128]
[phases.rates]
embeddings = 1e-5
"""


@pytest.fixture
def recipe(tmp_path):
    def written(text):
        path = tmp_path / "recipe.toml"
        path.write_text(text)
        return path

    return written


def test_what_is_left_out_keeps_its_default(recipe):
    config = TrainingConfig.from_toml(recipe(RECIPE))
    weak, strong = config.phases
    assert config == replace(TrainingConfig(), seed=3, start=StartConfig(name="mine"), phases=config.phases)
    assert weak == replace(
        PhaseConfig(), name="weak", context_dropout=0.0, schedule=ScheduleConfig(updates=7), corpora=weak.corpora
    )
    assert weak.corpora.parents.passages == (2, 4)
    assert weak.corpora.context.documents == "batch"
    assert strong.loss.dims == (384, 128)
    assert strong.rates == RatesConfig(embeddings=1e-5)
    assert TrainingConfig.from_toml(recipe("")) == TrainingConfig()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed = 1", r"recipe\.toml: unknown key 'sed'; the nearest one is 'seed'"),
        ("[[phases]]\n[phases.rates]\nencodr = 1", "unknown key 'phases.*rates.encodr'; the nearest one is .*encoder"),
        ("seed = 1.5", "seed is of type int, found 1.5"),
        ("seed = true", "seed is of type int, found True"),
        ("seed", "Expected a recipe"),
        ("phases = 3", "phases is a list, found 3"),
        ("start = 3", r"expected a table \[start\], found 3"),
        ('[[phases]]\nbatches = "paper"', "is one of 'corpora', 'packed', found 'paper'"),
        ("[[phases]]\n[phases.corpora.parents]\npassages = [1]", "passages has 2 entries, found 1"),
        ("[[phases]]\n[phases.schedule]\nupdates = 0", "updates or minutes above 0"),
        ("[[phases]]\n[phases.schedule]\nepochs = 3", "updates or epochs, found 1000 updates and 3 epochs"),
        ("[[phases]]\n[phases.schedule]\nepochs = -1", "updates, epochs, minutes and warmup_updates of at least 0"),
        ("[[phases]]\n[phases.schedule]\nupdates = 0\nminutes = 1\nwarmup_updates = 9", "found a time alone"),
        ('[start]\nattention = "sideways"', "start.attention is one of 'one_way', 'two_way'"),
        ("phases = []", "one phase or more"),
        ("[[phases]]\n[[phases]]", "phases of different names"),
        ("share = 2", "a share in 0"),
        ("[machine]\nmini_batch_size = 0", "at least 1"),
        ('[[phases]]\n[phases.loss]\nteacher = "surrogate"', "pairs that are shown with their own queries"),
        ("[evaluation]\nevery = -1", "every and probe_every of at least 0"),
        ("[guard]\nwindow = 1", "a window of at least 2"),
        ("[start.distillation]\nupdates = 0", "updates and batch_size of at least 1"),
        ("[[phases]]\n[phases.rates]\nencoder = nan", "phases.0.*encoder is a finite number, found nan"),
        ("[[phases]]\n[phases.schedule]\nminutes = inf", "minutes is a finite number, found inf"),
        ("[[phases]]\n[phases.packing]\nbatch_size = 0", "a batch_size of at least 1, found 0"),
        ("[[phases]]\n[phases.corpora]\nbatch_size = 0", "batch_size and anchors of at least 1, .* found 0"),
        ("[[phases]]\n[phases.corpora]\nanchors = 0", "batch_size and anchors of at least 1"),
        ("[[phases]]\n[phases.corpora]\nhard_negatives = -1", "hard_negatives of at least 0"),
        ("[[phases]]\n[phases.corpora.context]\nnull_share = 1.5", "a null_share in 0"),
        ("[[phases]]\n[phases.corpora.parents]\nsiblings = -1", "siblings of at least 0"),
        ("[[phases]]\n[phases.corpora.parents]\nwrong_share = -0.1", "Expected shares in 0"),
        ("[[phases]]\n[phases.corpora.parents]\napart_share = 1.5", "Expected shares in 0"),
        (
            "[[phases]]\n[phases.corpora.views]\nsentence_share = -0.5",
            "keywords_share and sentence_share of at least 0",
        ),
        ("[[phases]]\n[phases.corpora.transformations]\nheader_tokens = [9, 2]", "header_tokens from 0 on"),
    ],
)
def test_what_cannot_be_is_named(recipe, text, message):
    with pytest.raises(RecipeError, match=message):
        TrainingConfig.from_toml(recipe(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"none\.toml"):
        TrainingConfig.from_toml(tmp_path / "none.toml")
