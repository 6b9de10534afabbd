"""The command cde-rag-train on the tiny model: each command says what it found, and bad input is one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plain_model import write_static
from prepared_stub import prepared_stub, stub_pairs
from tiny import tiny_network, tiny_tokenizer
from training_run import Run, one_sentence
from typer.testing import CliRunner

from cde_rag import PlainEmbedder
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag_training.cli import app
from cde_rag_training.cli.recipes import NAMES
from cde_rag_training.clustering.surrogate import minilm
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.presets import PRESETS, preset, preset_text

COMMANDS = "questions mine prepare cluster inspect train presets interpolate rotate adapt".split()
RECIPE = """
[start]
model = {model}
name = "made"
[evaluation]
every = 0
probe_every = 0
[guard]
action = "none"
[machine]
precision = "float32"
mini_batch_size = 8
save_every = 2
[[phases]]
[phases.corpora]
batch_size = 8
[phases.corpora.context]
smallest = 4
largest = 8
[phases.schedule]
updates = {updates}
[phases.rates]
encoder = 1e-3
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny_model")
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_stub(tmp_path_factory.mktemp("data") / "prepared").folder


@pytest.fixture
def recipe(tmp_path: Path, model: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(model=json.dumps(str(model)), updates=4))
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"query": pair.query, "document": pair.document, "source": pair.source, "domain": pair.domain}
        for pair in stub_pairs()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_help_is_cheap_and_names_every_command():
    heavy = "{'torch', 'numpy', 'faiss', 'tqdm'} & set(sys.modules)"
    code = f"import sys; from cde_rag_training.cli import app; print({heavy})"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"
    listed = CliRunner().invoke(app, ["--help"]).stdout.partition("Commands:")[2]
    assert [line.split()[0] for line in listed.splitlines() if line.strip()] == COMMANDS


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_fits_in_eighty_columns_and_is_not_cut(command: list[str]):
    shown = CliRunner().invoke(app, [*command, "--help"], terminal_width=80).stdout
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert [line for line in shown.partition("Commands:")[2].splitlines() if line.endswith("...")] == []


def test_distil_answers_with_the_line_that_runs_it(run: Run):
    told = run("distil", "run", "my texts", "--output", "runs/small", "--help", code=2).stderr
    assert told.endswith(": python -m lab.distil run 'my texts' --output runs/small --help\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str):
    text = CliRunner().invoke(app, [command, "--help"]).stdout
    assert f"\n    cde-rag-train {command}" in text
    assert "--json" in text


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_recipes_that_say_what_they_are(name: str, run: Run):
    assert NAMES == PRESETS
    assert preset(name).phases
    assert run("presets", name).stdout == preset_text(name)
    assert f"cde-rag-train train prepared --preset {name}" in preset_text(name)
    assert ("--lexical" in preset_text(name)) == (preset(name).phases[0].filter.rule == "agreement")
    summary = json.loads(run("presets", "--json").stdout)[name]
    assert summary.endswith(".")
    assert run("presets").stdout.count("\n") == len(PRESETS)


def test_the_small_preset_is_the_papers():
    start, (phase,) = preset("paper-small").start, preset("paper-small").phases
    assert (start.attention, start.limit_layers, start.context_size, start.max_length) == ("two_way", 6, 64, 64)
    assert (phase.packing.batch_size, phase.loss.temperature, phase.rates.encoder) == (512, 0.02, 2e-5)
    assert (phase.corpora.context.smallest, phase.corpora.context.largest) == (64, 64)
    assert (phase.schedule.epochs, phase.schedule.warmup_updates) == (3, 1000)
    assert (phase.filter.rule, phase.filter.margin) == ("relative", 0.0)


def test_the_other_presets_are_the_papers_too():
    """Paper §5 and §6; GTE §3.3 and §3.4, table 3."""
    start, (weak, strong) = preset("paper-large").start, preset("paper-large").phases
    assert (start.context_size, start.max_length, weak.packing.order) == (512, 512, "tour")
    assert [(each.corpora.hard_negatives, each.schedule.epochs) for each in (weak, strong)] == [(0, 3), (1, 4)]
    weak, strong = preset("gte").phases
    assert {(each.loss.kind, each.loss.temperature, each.packing.source_exponent) for each in (weak, strong)} == {
        ("improved", 0.01, 0.5)
    }
    assert [each.packing.batch_size for each in (weak, strong)] == [16384, 128]
    assert (strong.corpora.hard_negatives, strong.rates.encoder) == (15, weak.rates.encoder / 10)


@pytest.mark.parametrize("stream", [[], ["--stream"]])
def test_pairs_of_a_data_set_by_name(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: list[str]
):
    """A folder stands in for the hub; its columns have other names, and hard negatives two."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "faq").mkdir()
    rows = [{"anchor": each.query, "answer": each.document, "no": "river", "never": "loan"} for each in stub_pairs()]
    (tmp_path / "faq" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = "query=anchor,document=answer,hard_negatives=no,hard_negatives=never"
    given = (f"hub:{tmp_path / 'faq'}", "--columns", columns, "--rows", 40, *stream)
    options = ("--start", model, "--surrogate", "tfidf", "--max-length", 32, "--keep-duplicates", "--json")
    told = json.loads(run("prepare", *given, "--output", tmp_path / "prepared", *options).stdout)
    assert (told["pairs"], told["sources"]) == (40, 1)
    prepared = Prepared.load(tmp_path / "prepared")
    assert prepared.source_names == ("faq",)
    assert prepared.hard_negatives.shape == (40, 2)
    run("mine", *given, "--output", tmp_path / "mined.jsonl", "--first", 1)
    mined = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    assert [row["query"] for row in mined] == [row["anchor"] for row in rows[:40]]
    for wrong in ("query=a,query=b", "title", "answer=b"):
        told = run("prepare", "p.jsonl", "--columns", wrong, "--output", tmp_path / "b", code=2).stderr
        assert "--columns" in told


def test_from_pairs_to_a_model(run: Run, pairs: Path, model: Path, recipe: Path, tmp_path: Path):
    folder, packed, output = tmp_path / "prepared", tmp_path / "p.zip", tmp_path / "run"
    options = ("--start", model, "--surrogate", "tfidf", "--max-length", 32, "--keep-duplicates", "--pack", packed)
    told = json.loads(run("prepare", pairs, "--output", folder, *options, "--json").stdout)
    assert (told["pairs"], told["sources"], told["skipped"]) == (96, 2, 0)
    assert packed.is_file()
    found = json.loads(run("inspect", folder, "--config", recipe, "--update", 3, "--json").stdout)
    assert (found["update"], found["size"]) == (3, 8)
    assert f"update 3: 8 pairs of {found['source']}" in run("inspect", folder, "--config", recipe, "--update", 3).stdout
    made = json.loads(run("train", folder, "--config", recipe, "--output", output, "--json").stdout)
    assert CDEModel.from_pretrained(made["model"]).identity.name == "made"
    between = tmp_path / "between"
    run("interpolate", model, made["model"], between, "--share", 0.5)
    states = [CDEModel.from_pretrained(one).network.state_dict() for one in (model, between, made["model"])]
    key = "second_stage.layers.0.up.bias"
    start, middle, end = (state[key].float().numpy() for state in states)
    assert np.abs(end - start).max() > 1e-3
    np.testing.assert_allclose(middle, (start + end) / 2, atol=2e-3)
    mean = json.loads(run("interpolate", model, between, tmp_path / "mean", "--with", made["model"], "--json").stdout)
    assert mean["averaged"] == 2
    of_both = CDEModel.from_pretrained(mean["folder"]).network.state_dict()["second_stage.layers.0.up.bias"]
    np.testing.assert_allclose(of_both.float(), start + 0.5 * (0.75 * (end - start)), atol=2e-3)
    less = tmp_path / "less"
    run("interpolate", model, made["model"], less, "--share", 1, "--siblings", 0.5, "--exponent", 0.15)
    whole, half = states[2], CDEModel.from_pretrained(less).network.state_dict()
    key = "second_stage.sibling_output.weight"
    np.testing.assert_allclose(half[key], whole[key] / 2, atol=2e-3)
    assert half["output_map.exponent"] == pytest.approx(0.15)
    assert whole["output_map.exponent"] != pytest.approx(0.15)
    told = json.loads(run("rotate", less, folder, tmp_path / "turned", "--pairs", 60, "--json").stdout)
    assert CDEModel.from_pretrained(told["folder"]).network.config.rotated


def test_clusters_are_shown_and_made_anew(run: Run, prepared: Path, tmp_path: Path):
    levels = json.loads(run("cluster", prepared, "--json").stdout)
    assert [(one["level"], one["source"], one["largest"]) for one in levels[:2]] == [(0, "docs", 8), (0, "faq", 8)]
    text = run("cluster", prepared, "--output", tmp_path / "finer", "--size", 4, "--size", 16, "--examples", 1).stdout
    assert text.count("level 0") == text.count("level 1") == 2
    assert Prepared.load(tmp_path / "finer").clusters.shape == (96, 2)
    assert "--output" in run("cluster", prepared, "--size", 4, code=2).output


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"query": " ", "document": "the river"}, "line 2: the text in 'query' is blank"),
        ({"query": "the river"}, "line 2: no value in 'document'"),
    ],
)
def test_a_bad_pair_is_named(run: Run, pairs: Path, model: Path, tmp_path: Path, row: dict, expected: str):
    lines = pairs.read_text().splitlines()
    pairs.write_text("\n".join([lines[0], json.dumps(row), *lines[1:]]))
    options = ("--output", tmp_path / "p", "--start", model, "--surrogate", "tfidf", "--keep-duplicates")
    assert expected in one_sentence(run("prepare", pairs, *options, code=1))
    assert "Skipped 1 bad ones" in run("prepare", pairs, *options, "--skip-bad").stderr


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("\nbatch_size = 8", "\nbatch_siz = 8"), "unknown key 'phases[0].corpora.batch_siz'; the nearest one is"),
        (("\nbatch_size = 8", "\nbatch_size = 80"), "choose smaller batches"),
        (("updates = 4", 'updates = "four"'), "updates is of type int, found 'four'"),
        (('name = "made"', 'name = "made'), "Expected a recipe (TOML)"),
    ],
)
def test_a_bad_recipe_is_one_sentence(
    run: Run, prepared: Path, recipe: Path, tmp_path: Path, change: tuple[str, str], expected: str
):
    recipe.write_text(recipe.read_text().replace(*change))
    told = one_sentence(run("train", prepared, "--config", recipe, "--output", tmp_path / "run", code=1))
    assert expected in told


def test_another_runs_folder_is_refused(run: Run, prepared: Path, recipe: Path, tmp_path: Path):
    run("train", prepared, "--config", recipe, "--output", tmp_path / "run")
    recipe.write_text(recipe.read_text().replace("updates = 4", "updates = 5"))
    assert "run" in one_sentence(run("train", prepared, "--config", recipe, "--output", tmp_path / "run", code=1))


@pytest.mark.parametrize("command", ["cluster", "inspect", "train"])
def test_what_is_not_prepared_is_told(run: Run, tmp_path: Path, command: str):
    options = ("--output", tmp_path / "run") if command == "train" else ()
    assert "expected a prepared folder" in one_sentence(run(command, tmp_path / "nothing", *options, code=1))


def test_missing_files_and_wrong_usage(run: Run, tmp_path: Path, recipe: Path, prepared: Path, model: Path):
    gone = tmp_path / "gone"
    assert "found nothing" in one_sentence(run("prepare", gone, "--output", tmp_path / "p", "--start", model, code=1))
    assert "gone" in one_sentence(run("train", prepared, "--config", gone, "--output", tmp_path / "r", code=1))
    there = run("train", prepared, "--config", recipe, "--output", tmp_path / "r", "--device", "nowhere", code=1)
    assert "found 'nowhere', which torch cannot use" in one_sentence(there)
    assert "gone" in one_sentence(run("interpolate", gone, model, tmp_path / "b", code=1))
    for exponent in ("nan", "inf", -0.1, 5):
        refused = run("interpolate", model, model, tmp_path / "b", f"--exponent={exponent}", code=2)
        assert "--exponent" in refused.output
    assert "gone" in one_sentence(run("rotate", gone, prepared, tmp_path / "b", code=1))
    assert "gone" in one_sentence(run("adapt", gone, "--output", tmp_path / "a", code=1))
    both = run("inspect", prepared, "--config", recipe, "--preset", "laptop", code=2)
    assert "not both" in both.output
    assert "there are paper-small" in run("train", prepared, "--preset", "x", "--output", gone, code=2).output
    assert "phases, from 0" in run("inspect", prepared, "--phase", 7, code=2).output


def test_pairs_of_one_domain_can_be_trained_on(run: Run, model: Path, recipe: Path, tmp_path: Path):
    path = tmp_path / "one.csv"
    rows = [f"{pair.query},{pair.document}" for pair in stub_pairs(60)]
    path.write_text("\n".join(["query,document", *rows]))
    options = ("--start", model, "--surrogate", "tfidf", "--max-length", 32, "--keep-duplicates")
    run("prepare", path, "--output", tmp_path / "prepared", *options)
    assert Prepared.load(tmp_path / "prepared").domain_names == ("one",)
    run("train", tmp_path / "prepared", "--config", recipe, "--output", tmp_path / "run")


def test_a_model_may_read_longer_texts_than_the_surrogate(run: Run, pairs: Path, model: Path, tmp_path: Path):
    options = ("--start", model, "--max-length", 12, "--keep-duplicates")
    run("prepare", pairs, "--output", tmp_path / "one", *options, "--surrogate-length", 8)
    prepared = Prepared.load(tmp_path / "one")
    assert (prepared.max_length, max(map(len, prepared.texts))) == (12, 12)
    texts = [json.loads(line)["document"] for line in pairs.read_text().splitlines()]
    expected, whole = (minilm(max_length=length)(texts) for length in (8, 12))
    np.testing.assert_allclose(prepared.document_vectors, expected, atol=2e-2)
    assert np.abs(prepared.document_vectors - whole).max() > 0.1
    tfidf = (*options, "--surrogate", "tfidf", "--surrogate-length", 8)
    assert "uncut texts" in run("prepare", pairs, "--output", tmp_path / "two", *tfidf, code=2).output


def vectors_in(folder: Path) -> bytes:
    return (folder / "document_vectors.npy").read_bytes()


def test_any_plain_model_is_a_surrogate(run: Run, pairs: Path, model: Path, tmp_path: Path):
    table = write_static(tmp_path / "table")
    options = ("--start", model, "--max-length", 32, "--surrogate")
    run("prepare", pairs, "--output", tmp_path / "one", *options, table, "--keep-duplicates")
    texts = [json.loads(line)["document"] for line in pairs.read_text().splitlines()]
    expected = PlainEmbedder(table).embed_documents(texts)
    np.testing.assert_allclose(Prepared.load(tmp_path / "one").document_vectors, expected, atol=2e-2)
    (cache,) = (tmp_path / "one/cache/surrogate").iterdir()
    assert cache.name.startswith("plain-")
    run("prepare", pairs, "--output", tmp_path / "there", *options, table, "--keep-duplicates", "--device", "cpu")
    assert vectors_in(tmp_path / "there") == vectors_in(tmp_path / "one")
    for place in ("cuda:99", "nowhere"):
        gone = run("prepare", pairs, "--output", tmp_path / "two", *options, table, "--device", place, code=1)
        assert f"found '{place}', which torch cannot use" in one_sentence(gone)
    lone = run("prepare", pairs, "--output", tmp_path / "two", *options, "tfidf", "--device", "cpu", code=2)
    assert "no surrogate runs on a device" in " ".join(lone.output.split())
    length = ("--surrogate-length", 8)
    assert (
        "its own limit" in run("prepare", pairs, "--output", tmp_path / "two", *options, table, *length, code=2).output
    )
    assert (
        "Expected a plain model" in run("prepare", pairs, "--output", tmp_path / "two", *options, model, code=1).stderr
    )
    run("mine", pairs, "--output", tmp_path / "mined.jsonl", "--by", table, "--first", 1)
    mined = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    assert any(row["hard_negatives"] for row in mined if "hard_negatives" in row)


def test_near_duplicates_are_taken_out_and_told(run: Run, pairs: Path, model: Path, tmp_path: Path):
    lines = pairs.read_text().splitlines()
    copy = json.loads(lines[0]) | {"query": "a river of credit", "document": json.loads(lines[1])["document"] + " is"}
    pairs.write_text("\n".join([*lines, json.dumps(copy)]))
    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    (evaluation / "corpus.jsonl").write_text(json.dumps({"_id": "1", "text": json.loads(lines[5])["document"]}))
    (evaluation / "queries.jsonl").write_text(json.dumps({"_id": "1", "text": "a text that nothing else is like"}))
    options = ("--start", model, "--surrogate", "tfidf", "--max-length", 32, "--against", evaluation)
    done = run("prepare", pairs, "--output", tmp_path / "p", *options)
    assert "taken out because of evaluation: " in done.stderr
    assert "97 pairs, " in done.stderr
    assert len(Prepared.load(tmp_path / "p")) < 97
    assert (
        "--against" in run("prepare", pairs, "--output", tmp_path / "p", *options, "--keep-duplicates", code=2).output
    )
