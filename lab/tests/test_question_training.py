"""The plan at tiny size: every step of it, once; and the parts that decide."""

import csv
import gzip
import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from made_questions import lines, write_corpus
from made_sets import write_set
from prepared_stub import stub_vectors
from tiny import WORDS
from tiny_run import start_folder

from cde_rag.evaluation.answer_passages import PagePassage
from cde_rag.evaluation.answer_scores import JudgedPassages
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.question_folder import Site
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag_training.config import LossConfig
from cde_rag_training.networks.interpolation import merge_models
from cde_rag_training.questions.hard_negatives import HardNegativesConfig, hard_negatives
from cde_rag_training.recipe import RecipeError
from lab.experiments import bundled_pairs, question_choices, question_training
from lab.experiments.question_scores import ScoreRow
from lab.experiments.question_training import (
    GatesConfig,
    SetRow,
    VariantConfig,
    chosen_questions,
    gates,
    read_plan,
    taught,
)

ROOT = Path(__file__).resolve().parents[2]
PLAN = """
start = "{start}"
questions = "train/questions"
development = ["eval/more"]
sets = "sets.toml"
against = ["eval"]
passages = 30
evaluated_passages = 25
context = 16
batch = 4
shares = [0.5, 1.0]
[[old]]
source = "docs"
weight = 2.0
[[old]]
source = "lfrqa"
weight = 1.0
[gates]
heading_sets = ["river"]
[[variants]]
name = "all"
seeds = [0, 1]
merged = true
[[variants]]
name = "few"
corpora = 1
questions = 8
[[variants.change.phases]]
corpora = {{ context = {{ null_share = 1.0 }} }}
[recipe.prepare]
max_length = 24
[recipe.prepare.clusters]
size = 8
[recipe.evaluation]
every = 0
probe_every = 0
[recipe.guard]
action = "none"
[recipe.machine]
precision = "float32"
mini_batch_size = 8
[[recipe.phases]]
[recipe.phases.corpora]
hard_negatives = 2
granularity = {{ cluster = 0.0, wide_cluster = 0.0, domain = 1.0, domains = 0.0, source = 0.0 }}
context = {{ smallest = 4, largest = 8, null_share = 0.25 }}
parents = {{ share = 0.0, apart_share = 0.5 }}
[recipe.phases.loss]
teacher = "start"
teacher_sources = ["docs", "lfrqa"]
[recipe.phases.rates]
encoder = 1e-2
"""


def write_questions(folder: Path, name: str, *, seed: int, count: int) -> None:
    """Pages of three passages of random words, with a question about each of the first ones."""
    draw = np.random.default_rng(seed)
    pages, asked = {}, []
    for page in range(8):
        parts = [
            " ".join(f"{word}{'bcdefghi'[page]}{'klmn'[part]}" for word in draw.choice(WORDS, 60)) for part in range(4)
        ]
        pages[f"{page}.md"] = f"# {WORDS[page]} {name}\n\n" + "\n\n".join(f"{part}." for part in parts)
        asked += [
            {
                "question": f"{' '.join(part.split()[7:10])} {page}{place}?",
                "kind": ("plain", "keyword")[place % 2],
                "answers": [{"page": f"{page}.md", "quote": " ".join(part.split()[4:16])}],
            }
            for place, part in enumerate(parts[:count])
        ]
    write_corpus(folder / name, pages, asked)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for seed, (name, count) in enumerate((("bank", 3), ("boat", 3), ("fish", 1))):
        write_questions(folder / "train/questions", name, seed=seed, count=count)
    sites = "site,split,form\nbank,train,people\nboat,train,code\nfish,dev,code\n"
    (folder / "train/questions/sites.csv").write_text(sites)
    write_questions(folder / "eval", "more", seed=9, count=1)
    write_set(folder / "eval/river", seed=0, words=[str(word) for word in WORDS[:12]])
    write_set(folder / "eval/shore", seed=1, words=[str(word) for word in WORDS[8:]])
    draw = np.random.default_rng(5)
    for source in (*bundled_pairs.FILES, *bundled_pairs.HELD_OUT_SOURCES):
        (folder / "train" / source).mkdir()
        rows = [
            {
                "query": f"{source} {at}",
                "document": " ".join(draw.choice(WORDS, 30)),
                "domain": source,
                "title": f"p{at}",
            }
            for at in range(40)
        ]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        (folder / "train" / source / "pairs.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    start = start_folder(folder / "start")
    (folder / "plan.toml").write_text(PLAN.format(start=start))
    (folder / "sets.toml").write_text('[[sets]]\npath = "eval/river"\n[[sets]]\npath = "eval/shore"\n')
    return folder


def no_surrogate() -> None:
    raise AssertionError("expected the vectors of the first run")


def run(data: Path, work: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    command = ["plan", str(data / "plan.toml"), "--data", str(data), "--work", str(work), "--threads", "1", *arguments]
    monkeypatch.setattr(sys, "argv", command)
    monkeypatch.setattr(bundled_pairs, "PACKAGES", ())
    question_training.main()


def test_the_plan_runs_and_resumes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(question_training, "minilm", lambda: stub_vectors)
    run(data, tmp_path, monkeypatch, "--until", "negatives")
    rows = lines(tmp_path / "negatives/bank.jsonl.gz")
    known = {row["id"] for row in rows if "id" in row}
    assert 30 <= len(known) <= 32
    for row in rows:
        if "question" in row:
            assert len(row["negatives"]) >= 3
            assert set(row["negatives"]) <= known
    old = [json.loads(line) for line in (tmp_path / "old.jsonl").read_text().splitlines()]
    assert {row["source"] for row in old} == {"docs", "lfrqa"}
    restored = tmp_path / "restored"
    for step, work in (("write", tmp_path), ("restore", restored)):
        files = [str(work), str(tmp_path / "choices.jsonl.gz"), "--plan", str(data / "plan.toml"), "--data", str(data)]
        monkeypatch.setattr(sys, "argv", ["choices", step, *files])
        question_choices.main()
    for name in ("old.jsonl", "pairs/train.jsonl.gz", "negatives/bank.jsonl.gz", "negatives/boat.jsonl.gz"):
        assert (restored / name).read_bytes() == (tmp_path / name).read_bytes()
    assert "text" not in {key for row in lines(tmp_path / "choices.jsonl.gz") for key in row}
    run(data, tmp_path, monkeypatch)
    told = capsys.readouterr().out
    assert len(list((tmp_path / "all/first-stage").iterdir())) == 1  # of both seeds
    assert "scores, all: " in told
    assert sorted(path.name for path in (tmp_path / "scores").glob("few*")) == ["few-share-1-questions.csv"]
    for name in ("all-share-0.5", "all-share-1"):
        with (tmp_path / f"scores/{name}-gates.csv").open() as file:
            judged = {row["name"]: row for row in csv.DictReader(file)}
        assert set(judged) >= {"answers by vectors", "form code", "kind plain", "mean of the sets", "page and heading"}
        with (tmp_path / f"scores/{name}-questions.csv").open() as file:
            (own,) = [
                row
                for row in csv.DictReader(file)
                if (row["part"], row["system"], row["by"], row["context"]) == ("all", name, "vectors", "own")
            ]
        assert float(judged["answers by vectors"]["value"]) == float(own["gain"])
        assert own["corpora"] == "2"  # fish, and the one of eval/
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(question_training, "minilm", no_surrogate)
    run(data, tmp_path, monkeypatch)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    made = {path for path in after if before.get(path) != after[path]}
    assert {path for path in made if path.suffix in (".csv", ".safetensors", ".gz", ".npy")} == set()


def test_batches_hold_what_the_plan_says(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sources by form, hard negatives in all batches of questions, and half as many old pairs."""
    monkeypatch.setattr(question_training, "minilm", lambda: stub_vectors)
    monkeypatch.setattr(bundled_pairs, "PACKAGES", ())
    config, variants = read_plan(data / "plan.toml")
    plan = question_training.TrainingPlan(config, variants, data, tmp_path, data, [])
    prepared = plan.prepared(variants[0])
    names = [prepared.source_names[code] for code in prepared.sources]
    assert set(names) == {"people", "code", "docs", "lfrqa"}
    questions = sum(name not in ("docs", "lfrqa") for name in names)
    assert len(names) - questions == pytest.approx(questions / 2, abs=2)
    assert prepared.passages is not None
    assert (prepared.hard_negatives[[name not in ("docs", "lfrqa") for name in names]] >= 0)[:, :3].all()
    few = plan.prepared(variants[1])
    assert len({few.domain_names[code] for code in few.domains} - {"docs", "lfrqa"}) == 1


def test_every_other_corpus_of_a_form_has_titles_in_front() -> None:
    rows = [{"domain": f"{form} {number}", "source": form} for form in ("people", "code") for number in range(4)]
    named = question_training.sources_of(rows, least=2)
    assert Counter(named.values()) == {"people": 2, "people, titled": 2, "code": 2, "code, titled": 2}
    together = question_training.sources_of(rows[1:], least=2)  # too few pairs of one source
    assert sorted(Counter(together.values()).values()) == [3, 4]
    assert together.keys() == {row["domain"] for row in rows[1:]}


def test_titles_stand_before_the_passages_of_a_titled_source(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(question_training, "minilm", lambda: stub_vectors)
    monkeypatch.setattr(bundled_pairs, "PACKAGES", ())
    monkeypatch.setattr(question_training, "sources_of", lambda *_, **__: {"bank": "people, titled", "boat": "code"})
    config, variants = read_plan(data / "plan.toml")
    pairs, passages = question_training.TrainingPlan(config, variants, data, tmp_path, data, [])._material(variants[0])
    for domain, title in (("bank", True), ("boat", False)):
        texts = [pair.document for pair in pairs if pair.domain == domain]
        texts += [negative for pair in pairs if pair.domain == domain for negative in pair.hard_negatives]
        texts += [passage.text for passage in passages if passage.domain == domain]
        assert (
            all(f" {domain}" in text.split("\n")[0] for text in texts) == title
        )  # the first of a page has its heading


def test_a_folder_of_other_settings_is_refused(data: Path, tmp_path: Path) -> None:
    config, variants = read_plan(data / "plan.toml")
    question_training.TrainingPlan(config, variants, data, tmp_path, data, [])
    question_training.TrainingPlan(config, variants, data, tmp_path, data, [])
    for other, names in ((replace(config, passages=7), []), (config, ["bank"])):
        with pytest.raises(RecipeError, match="other settings or corpora"):
            question_training.TrainingPlan(other, variants, data, tmp_path, data, names)


def test_a_merge_is_between_start_and_mean_in_all_tensors(tmp_path: Path) -> None:
    from tiny import tiny_network, tiny_tokenizer

    start = start_folder(tmp_path / "start")
    for seed in (1, 2):
        checkpoints.write(tmp_path / f"trained-{seed}", tiny_network(seed=seed), tiny_tokenizer())
    folders = [tmp_path / "trained-1", tmp_path / "trained-2"]
    begun, one, two = (checkpoints.read(each)[0].state_dict() for each in (start, *folders))
    for share in (0.0, 0.25, 1.0):
        merge_models(str(start), folders, tmp_path / f"share-{share}", share=share)
        found, _, _ = checkpoints.read(tmp_path / f"share-{share}")
        assert found.config.name == f"share-{share}"
        for name, value in found.state_dict().items():
            expected = torch.lerp(begun[name], (one[name] + two[name]) / 2, share)
            assert torch.allclose(value, expected, atol=float(expected.abs().max()) / 100 + 1e-6), name


def judged_passages() -> JudgedPassages:
    passages = tuple(PagePassage(page, at, "", f"{page} {at}", f"{page} {at}") for page in "ab" for at in range(4))
    question = JudgedQuestion("1", "?", "", (Answer("a", "a 0"),))
    return JudgedPassages(Site("made"), passages, (question, question), (frozenset({"a#0"}), frozenset()))


def test_hard_negatives_are_of_the_page_the_model_and_words_and_no_answers() -> None:
    data = judged_passages()
    scores = np.array([[0.5, 0.1, 0.45, 0.62, 0.55, 0.4, 0.3, 0.2], [1.0] * 8], dtype=np.float32)
    words = [[("0", 3.0), ("7", 2.0), ("3", 1.0), ("6", 0.5)], []]
    config = HardNegativesConfig(same_page=1, by_model=1, pool=3, by_words=1, margin=0.1)
    first, second = hard_negatives(data, scores, words, config)
    assert first.unmarked == (3,)  # 0.62 is more than the margin above 0.5: taken for a further answer
    assert first.passages == (2, 4, 7)  # of the page, the model's best, and the best by words that is neither
    assert first.above == 2
    assert (second.passages, second.unmarked) == ((), ())
    with pytest.raises(ValueError, match="pool of at least by_model"):
        HardNegativesConfig(pool=1)


def test_smaller_choices_are_parts_of_larger_ones() -> None:
    rows = [{"domain": f"d{at % 5}", "id": str(at // 5), "place": at} for at in range(40)]
    few = chosen_questions(rows, VariantConfig(name="a", questions=7))
    more = chosen_questions(rows, VariantConfig(name="b", questions=20))
    assert (len(few), len(more)) == (7, 20)
    assert {row["place"] for row in few} <= {row["place"] for row in more}
    assert len({row["domain"] for row in chosen_questions(rows, VariantConfig(name="c", corpora=2))}) == 2
    assert chosen_questions(rows, VariantConfig(name="d")) == rows


def row(part: str, gain: float, *, low: float = 0.0, by: str = "vectors", context: str = "own") -> ScoreRow:
    return ScoreRow(part, "new", context, by, 3, 9, 0.6, 0.7, gain, low, gain, low + 0.01, gain)


def test_gates() -> None:
    rows = [
        row("all", 0.07, low=0.031),
        row("all", 0.05, low=0.02, by="hybrid"),
        row("all", 0.0, context="null"),
        row("form code", 0.02),
        row("kind plain", 0.005),
        row("fish", -0.5),
    ]
    sets = [
        SetRow(name, "new", 0.5, gain, 0, 0) for name, gain in (("river", -0.004), ("bank", -0.03), ("mean", -0.01))
    ]
    found = {gate.name: gate.passed for gate in gates(rows, sets, GatesConfig(heading_sets=("river",)), "new")}
    assert found == {
        "answers by vectors": True,
        "answers by hybrid": False,  # not surely above half of the gate
        "form code": True,
        "kind plain": False,
        "mean of the sets": False,
        "river": True,
        "bank": False,
        "page and heading": True,
    }


def test_a_teacher_without_its_sources_teaches_nothing() -> None:
    loss = LossConfig(teacher="start", teacher_sources=("docs", "mail"))
    assert taught(loss, frozenset({"docs", "faq"})).teacher_sources == ("docs",)
    assert taught(loss, frozenset({"faq"})).teacher == "none"
    assert taught(LossConfig(teacher="start"), frozenset({"faq"})).teacher == "start"


def test_the_committed_plan_can_be_read(tmp_path: Path) -> None:
    config, variants = read_plan(ROOT / "lab/plans/user-questions.toml")
    assert len(variants) == 8
    assert all(variant.recipe.phases[0].corpora.hard_negatives == 2 for variant in variants)
    plain = next(variant for variant in variants if variant.config.name == "plain-2000")
    assert plain.recipe.phases[0].corpora.context.null_share == 1.0
    assert config.gates.vectors == 0.06
    (tmp_path / "none.toml").write_text('[[variants]]\nname = "a"\n[[variants]]\nname = "a"\n')
    with pytest.raises(RecipeError, match="different names"):
        read_plan(tmp_path / "none.toml")
