"""Recipes side by side: a cell is the base with its change, trained with each seed, scored as its model alone is."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_sets import write_set
from prepared_stub import prepared_stub
from tiny import WORDS
from tiny_run import start_folder
from typer.testing import CliRunner

from cde_rag.models import CDEModel
from cde_rag_training.config import TrainingConfig
from cde_rag_training.data.retrieval_sets import SetConfig, SetsConfig, read_sets
from cde_rag_training.loop.trainer import batches_of
from cde_rag_training.presets import preset
from cde_rag_training.recipe import RecipeError, changed, read_recipe
from lab.experiments.__main__ import app
from lab.experiments.cells import LOOKED_AT, Cell, batch_difficulty, cell_rows, read_cells
from lab.experiments.laboratory import Laboratory
from lab.experiments.models import readings

ROOT = Path(__file__).resolve().parents[2]
CELLS = """
seeds = [0, 1]
[base.start]
model = "{start}"
[base.evaluation]
every = 0
probe_every = 0
[base.guard]
action = "none"
[[base.phases]]
[base.phases.corpora]
batch_size = 8
context = {{ smallest = 4, largest = 8 }}
[base.phases.rates]
encoder = 1e-3
[base.phases.schedule]
updates = 2
[[cells]]
name = "both"
[[cells]]
name = "plain"
change = {{ phases = [{{ corpora = {{ context = {{ null_share = 1.0 }} }} }}] }}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cells")
    write_set(folder / "river", seed=0, words=WORDS[:12])
    write_set(folder / "bank", seed=1, words=WORDS[8:])
    prepared_stub(folder / "prepared")
    (folder / "pair.toml").write_text(CELLS.format(start=start_folder(folder / "start")))
    (folder / "sets.toml").write_text('[[sets]]\npath = "river"\n[[sets]]\npath = "bank"\n')
    return folder


def test_a_cell_is_the_base_with_its_change(folder: Path):
    both, plain = read_cells(folder / "pair.toml")
    assert [recipe.seed for recipe in both.recipes] == [0, 1]
    assert (both.given, plain.given) == ("context", "null")
    (phase,) = plain.recipes[0].phases
    assert (phase.corpora.context.smallest, phase.corpora.context.null_share) == (4, 1.0)
    assert plain.recipes[0].start.name == "plain"


def test_tables_are_laid_over_tables():
    base = {"a": {"b": 1, "c": [1, 2]}, "t": [{"x": 1}, {"x": 2}]}
    assert changed(base, {"a": {"c": [3]}}) == {"a": {"b": 1, "c": [3]}, "t": [{"x": 1}, {"x": 2}]}
    assert changed(base, {"t": [{"y": 3}]})["t"] == [{"x": 1, "y": 3}, {"x": 2}]
    assert changed(base, {"t": [{}, {}, {"x": 5}]})["t"] == [{"x": 1}, {"x": 2}, {"x": 5}]
    assert base == {"a": {"b": 1, "c": [1, 2]}, "t": [{"x": 1}, {"x": 2}]}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [0, 1]", "seed = 1", "unknown key 'seed'"),
        ("seeds = [0, 1]", "seeds = []", "a list of seeds"),
        ("seeds = [0, 1]", 'seeds = ["a"]', "seed is of type int"),
        ('name = "plain"', 'name = "both"', "different names"),
        ('name = "plain"', "", "its name and a table change"),
        ("null_share = 1.0", "nul_share = 1.0", "cell plain: unknown key 'phases.* the nearest one is .*null_share"),
        ("updates = 2", "updates = -2", "cell both.*at least 0, found.*updates=-2"),
    ],
)
def test_files_that_cannot_be_so(folder: Path, tmp_path: Path, old: str, new: str, message: str):
    text = (folder / "pair.toml").read_text()
    assert old in text
    (tmp_path / "pair.toml").write_text(text.replace(old, new))
    with pytest.raises(RecipeError, match=message):
        read_cells(tmp_path / "pair.toml")


def test_a_base_may_be_that_of_another_file(folder: Path, tmp_path: Path):
    text = (folder / "pair.toml").read_text()
    (tmp_path / "pair.toml").write_text(text)
    begin, end = text.index("[base.start]"), text.index("[[cells]]")
    (tmp_path / "other.toml").write_text('base = "pair.toml"\n' + text[:begin] + text[end:])
    assert read_cells(tmp_path / "other.toml") == read_cells(folder / "pair.toml")
    (tmp_path / "third.toml").write_text('base = "other.toml"\n' + text[:begin] + text[end:])
    with pytest.raises(RecipeError, match=r"third.*a table \[base\]"):
        read_cells(tmp_path / "third.toml")
    (tmp_path / "pair.toml").unlink()
    with pytest.raises(RecipeError, match=r"pair\.toml"):
        read_cells(tmp_path / "other.toml")


def test_difficulty_is_that_of_the_batches_a_run_sees(folder: Path, tmp_path: Path):
    """One by one: the cosines of each query with the documents of the other pairs of its batch."""
    prepared, (both, _) = prepared_stub(tmp_path / "prepared"), read_cells(folder / "pair.toml")
    means = []
    for recipe in both.recipes:
        batches = batches_of(prepared, recipe.phases[0], seed=recipe.seed)
        for update in range(LOOKED_AT):
            pairs = batches.batch(update).pairs.tolist()
            found = [
                prepared.query_vectors_of(np.array([query])) @ prepared.document_vectors_of(np.array([other])).T
                for query in pairs
                for other in pairs
                if other != query
            ]
            means.append(np.mean(found))
    assert batch_difficulty(prepared, both) == pytest.approx(np.mean(means), abs=1e-5)
    (phase,) = both.recipes[0].phases
    alone = replace(phase, corpora=replace(phase.corpora, clustered_share=0.0))
    assert batch_difficulty(prepared, both) != batch_difficulty(
        prepared, Cell("alone", (replace(both.recipes[0], phases=(alone,)),))
    )


def test_figures_are_those_of_the_models_themselves(folder: Path, tmp_path: Path):
    cells, prepared = read_cells(folder / "pair.toml"), prepared_stub(tmp_path / "prepared")
    sets = read_sets(SetsConfig(sets=(SetConfig(path="river"), SetConfig(path="bank"))), folder)
    rows = {(row.corpus, row.cell, row.given): row for row in cell_rows(cells, prepared, sets, tmp_path, seed=0)}
    assert len(rows) == 3 * 2 * 3
    figures = {}
    for cell in cells:
        models = [CDEModel.from_pretrained(tmp_path / f"{cell.name}-{seed}" / "model") for seed in (0, 1)]
        assert models[0].identity != models[1].identity
        figures[cell.name] = [readings(Laboratory(model, sets, tmp_path / "again")) for model in models]
    for (corpus, name, given), row in rows.items():
        places = [0, 1] if corpus == "mean" else [[one.corpus.name for one in sets].index(corpus)]
        means = [np.mean([each[given][place].mean() for place in places]) for each in figures[name]]
        first = [np.mean([each["context"][place].mean() for place in places]) for each in figures["both"]]
        assert row.ndcg == pytest.approx(np.mean(means))
        assert row.spread == pytest.approx(np.std(means))
        assert row.gain == pytest.approx(np.mean(means) - np.mean(first))
        assert row.low <= row.gain <= row.high
        assert row.difficulty == batch_difficulty(prepared, next(cell for cell in cells if cell.name == name))
    assert rows["mean", "both", "context"].gain == 0


def test_the_command_goes_on_where_it_stopped(folder: Path, tmp_path: Path):
    def command() -> list[str]:
        arguments = ["--recipes", folder / "pair.toml", "--sets", folder / "sets.toml", "--output", tmp_path, "--json"]
        ran = CliRunner().invoke(app, ["run", "cells", str(folder / "prepared"), *map(str, arguments)])
        assert ran.exit_code == 0, ran.output
        return json.loads(ran.stdout)["files"]

    table, figure = map(Path, command())
    assert (table.name, figure.name) == ("pair.csv", "pair.svg")
    with table.open() as file:
        first = list(csv.DictReader(file))
    assert {row["cell"] for row in first} == {"both", "plain"}
    assert figure.read_text().startswith("<?xml")
    trained = {path: path.read_bytes() for path in (tmp_path / "cache").glob("*/log.csv")}
    assert len(trained) == 4
    command()
    assert trained == {path: path.read_bytes() for path in trained}
    with table.open() as file:
        assert list(csv.DictReader(file)) == first


def test_the_command_asks_for_what_it_needs(folder: Path):
    ran = CliRunner().invoke(app, ["run", "cells", "--sets", str(folder / "sets.toml")])
    assert ran.exit_code == 2
    assert "recipes" in ran.output


def test_the_plans_say_what_they_are_for():
    """Sets, Table 1's four cells, and a twin that differs from the preset in its context alone."""
    plans = ROOT / "lab/plans"
    for name in ("development.toml", "brief.toml"):
        assert len(read_recipe(plans / name, SetsConfig).sets) >= 9
    cells = read_cells(plans / "table1.toml")
    assert [(cell.name, cell.given) for cell in cells] == [
        ("plain", "null"),
        ("clustered", "null"),
        ("contextual", "context"),
        ("both", "context"),
    ]
    assert {len(cell.recipes) for cell in cells} == {3}
    seen = [cell.recipes[0].phases[0] for cell in read_cells(plans / "batch-and-cluster.toml")]
    assert {phase.corpora.batch_size * phase.schedule.updates for phase in seen} == {7680}
    assert len({repr(phase) for phase in seen}) == len(seen) == 8
    sizes = {
        cell.name: cell.recipes[0].start.first_stage_layers for cell in read_cells(plans / "first-stage-size.toml")
    }
    assert sizes == {"none": 0, "1 layer": 1, "2 layers": 2, "6 layers": 6}
    twin, ours = TrainingConfig.from_toml(plans / "twin.toml"), preset("cde-mini")
    (phase,) = ours.phases
    corpora = phase.corpora
    without = replace(
        corpora,
        context=replace(corpora.context, null_share=1.0),
        parents=replace(corpora.parents, no_siblings_share=1.0),
    )
    start = replace(  # its first stage is asked nothing
        ours.start, name="twin", distillation=twin.start.distillation, lead_share=0.0, full_likeness=0.0
    )
    assert twin == replace(ours, start=start, share=twin.share, phases=(replace(phase, corpora=without),))
