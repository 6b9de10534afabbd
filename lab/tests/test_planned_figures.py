"""Figures by a plan: a plan that ran out of time resumes and ends with the tables of one that did not."""

import csv
import os
from dataclasses import replace
from pathlib import Path

import pytest
from made_sets import write_set
from prepared_stub import prepared_stub, stub_pairs
from test_experiment_cells import CELLS
from tiny import WORDS, tiny_tokenizer
from tiny_run import start_folder
from typer.testing import CliRunner

from cde_rag.models.tokenizer import TextTokenizer
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.data.retrieval_sets import SetConfig, SetsConfig, read_sets
from cde_rag_training.recipe import RecipeError
from lab.experiments import planned_figures
from lab.experiments.__main__ import app
from lab.experiments.difficulty import packing_orders, run_orders
from lab.experiments.masked_backbone import BackboneConfig, BackboneTraining
from lab.experiments.planned_figures import DONE, TimeOverError, read_plan, run_plan

PLANS = Path(__file__).resolve().parents[1] / "plans"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_set(tmp_path / "river", seed=0, words=WORDS[:12])
    write_set(tmp_path / "bank", seed=1, words=WORDS[8:])
    prepared_stub(tmp_path / "prepared")
    cells = CELLS.format(start=start_folder(tmp_path / "start"))
    (tmp_path / "first.toml").write_text(cells)
    both = cells[: cells.index('[[cells]]\nname = "plain"')]  # of the same recipe as in the first figure
    short = '[[cells]]\nname = "short"\nchange = { phases = [{ schedule = { updates = 1 } }] }\n'
    (tmp_path / "second.toml").write_text(both + short)
    (tmp_path / "plan.toml").write_text('recipes = ["first.toml", "second.toml"]')
    (tmp_path / "sets.toml").write_text('[[sets]]\npath = "river"\n[[sets]]\npath = "bank"\n')
    return tmp_path


def test_a_plan_that_ran_out_of_time_resumes(folder: Path, monkeypatch: pytest.MonkeyPatch):
    figures, prepared = read_plan(folder / "plan.toml"), Prepared.load(folder / "prepared")
    assert [(cell.name, recipe.seed) for cell, recipe in figures[0].runs] == [
        ("both", 0),
        ("plain", 0),
        ("both", 1),
        ("plain", 1),
    ]
    sets = read_sets(SetsConfig(sets=(SetConfig(path="river"), SetConfig(path="bank"))), folder)
    real, count = planned_figures.run_readings, iter(range(100))

    def stopped(*arguments: object, **options: object) -> object:
        if next(count) == 3:
            raise TimeOverError
        return real(*arguments, **options)  # type: ignore[arg-type]

    def planned(name: str, minutes: float | None) -> tuple[list[Path], dict[str, int]]:
        (folder / name).mkdir(exist_ok=True)
        return run_plan(figures, prepared, sets, folder / "cache" / name, folder / name, seed=0, minutes=minutes)

    with monkeypatch.context() as patch:
        patch.setattr(planned_figures, "run_readings", stopped)
        assert planned("parts", 60.0) == ([], {"first": 1, "second": 2})
    done = {path: path.stat().st_mtime_ns for path in (folder / "cache/parts").rglob(DONE)}
    assert len(done) == 3
    files, left = planned("parts", None)
    assert [path.name for path in files] == ["first.csv", "first.svg", "second.csv", "second.svg"]
    assert left == {}
    assert done.items() <= {path: path.stat().st_mtime_ns for path in (folder / "cache/parts").rglob(DONE)}.items()
    planned("whole", None)
    for name in ("first.csv", "second.csv"):
        assert (folder / "parts" / name).read_bytes() == (folder / "whole" / name).read_bytes()


def test_the_command_stops_in_time(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "nice", lambda _: 0)  # of this process, which runs other tests too
    others = (folder / "first.toml").read_text().replace('name = "', 'name = "other ')  # none of them done by the first
    (folder / "second.toml").write_text(others)
    arguments = ["plan", folder / "plan.toml", folder / "prepared", "--sets", folder / "sets.toml"]
    arguments += ["--output", folder / "out", "--minutes", 0.01]
    ran = CliRunner().invoke(app, [str(each) for each in arguments])
    assert ran.exit_code == 0, ran.output
    assert "second: 4 runs are missing; run the same command again" in ran.stderr


def test_table_1_in_small_runs_from_its_backbone_to_its_table(folder: Path):
    """The committed plan with small numbers: the four cells of the paper's architecture, from a backbone of our own."""
    sizes = BackboneConfig(layers=4, dim=16, heads=2, intermediate=32, max_positions=64, max_length=16)
    training = replace(sizes, batch_size=8, updates=2, warmup=1)
    texts = [pair.document for pair in stub_pairs(40)]
    tokenizer = TextTokenizer(tiny_tokenizer())
    assert BackboneTraining(texts, tokenizer, training, folder / "backbone", device="cpu").train()
    small = {
        '"../shared-backbone"': repr(str(folder / "backbone")),
        "seeds = [0, 1, 2]": "seeds = [0]",
        "context_size = 32": "context_size = 4",
        "max_length = 64": "max_length = 32",
        "smallest = 32, largest = 32": "smallest = 4, largest = 4",
        "batch_size = 128": "batch_size = 8",
        "epochs = 2": "epochs = 1",
    }
    text = (PLANS / "table1-paper.toml").read_text()
    for old, new in small.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "table1-paper.toml").write_text(text)
    (folder / "plan.toml").write_text('recipes = ["table1-paper.toml"]')
    figures = read_plan(folder / "plan.toml")
    sets = read_sets(SetsConfig(sets=(SetConfig(path="river"), SetConfig(path="bank"))), folder)
    prepared = Prepared.load(folder / "prepared")
    files, left = run_plan(figures, prepared, sets, folder / "cache", folder, seed=0, minutes=None)
    assert left == {}
    with files[0].open() as file:
        found = {(row["cell"], row["given"]) for row in csv.DictReader(file) if row["corpus"] == "mean"}
    cells = ("plain", "clustered", "contextual", "both")
    assert found == {(cell, given) for cell in cells for given in ("context", "null", "foreign")}
    for cell in figures[0].cells:
        (log,) = (folder / "cache").rglob(f"{cell.name}-0/log.csv")
        with log.open() as file:
            rows = [row for row in csv.DictReader(file) if row["loss"]]
        assert len(rows) == 12  # 96 pairs in batches of 8
        assert {row["context"] for row in rows} == {"0" if cell.given == "null" else "4"}
        assert all(row["corpus"].startswith("pack" if cell.name in ("clustered", "both") else "source") for row in rows)


@pytest.mark.parametrize("text", ["", "recipes = []", "recipes = [1]", 'recipe = ["first.toml"]', 'recipes = "a.toml"'])
def test_plans_that_cannot_be_so(folder: Path, text: str):
    (folder / "plan.toml").write_text(text)
    with pytest.raises(RecipeError, match="expected recipes, a list of names of files"):
        read_plan(folder / "plan.toml")


def test_the_plan_of_the_paper():
    """Figures change one part of a cell of Table 1, whose runs they take over."""
    table, figures = (figure.cells for figure in read_plan(PLANS / "paper.toml"))
    assert [{len(cell.recipes) for cell in cells} for cells in (table, figures)] == [{3}, {2}]
    (both,) = (cell for cell in table if cell.name == "both")
    assert figures[0].recipes == both.recipes[: len(figures[0].recipes)]
    (base,) = both.recipes[0].phases
    changed = {cell.name: cell.recipes[0].phases[0] for cell in figures[1:]}
    packing, corpora = base.packing, base.corpora
    assert changed == {
        "random order": replace(base, packing=replace(packing, order="random")),
        "1 hard negative": replace(base, corpora=replace(corpora, hard_negatives=1)),
        "3 hard negatives": replace(base, corpora=replace(corpora, hard_negatives=3)),
        "no filter": replace(base, filter=replace(base.filter, rule="none")),
        "batches of 32": replace(base, packing=replace(packing, batch_size=32)),
        "1 epoch": replace(base, schedule=replace(base.schedule, epochs=1)),
        "4 epochs": replace(base, schedule=replace(base.schedule, epochs=4)),
    }
    assert all(cell.given == "context" for cell in figures)


def test_cells_of_one_name_are_one_recipe(folder: Path):
    (folder / "second.toml").write_text((folder / "first.toml").read_text().replace("updates = 2", "updates = 3"))
    with pytest.raises(RecipeError, match="expected one recipe of cells named 'both', found two"):
        read_plan(folder / "plan.toml")


def test_a_tour_is_harder_than_random_packing(tmp_path: Path):
    """Clusters of a few pairs, whose neighbours are alike: random packing mixes them."""
    prepared = prepared_stub(tmp_path / "prepared")
    rows = packing_orders(prepared, cluster_sizes=[4], batch_size=16, seeds=[0, 1])
    assert [row.order for row in rows] == ["tour", "random"]
    assert rows[0].difficulty > rows[1].difficulty
    files = run_orders(prepared, tmp_path, 0)
    assert [path.name for path in files] == ["packing.csv", "packing.svg"]
    assert all(path.stat().st_size for path in files)
