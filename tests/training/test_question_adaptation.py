"""Adaptation by questions in the small, through the command: pairs, verdict, resumption, and a language model's."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_llm import FakeLLM, fake_llm
from made_corpus import own_corpus, page_questions, page_records, three_questions, write_records, write_rows
from prepared_stub import stub_vectors
from tiny import tiny_network, tiny_tokenizer
from training_run import Run, one_sentence

from cde_rag.evaluation.own_questions import read_own_questions
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag_training.adapt import question_adaptation
from cde_rag_training.adapt.before_after import SearchScores
from cde_rag_training.adapt.question_adaptation import (
    QUESTIONS,
    TITLED,
    QuestionAdaptationConfig,
    recipe_of,
    training_pairs,
)
from cde_rag_training.adapt.question_material import QuestionMaterial, question_material, rehearsal_pairs
from cde_rag_training.cli.adapt import NOT_BETTER
from cde_rag_training.cli.recipes import chosen_recipe
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.networks.interpolation import merge_models
from cde_rag_training.presets import PRESETS


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    monkeypatch.setattr(question_adaptation, "minilm", lambda max_length: stub_vectors)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_records(tmp_path / "corpus.jsonl")


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "questions.jsonl", page_questions(page_records()))


@pytest.fixture
def material(questions: Path) -> QuestionMaterial:
    return question_material(read_own_questions(questions, own_corpus(), name="words"), seed=0, passages=1_000)


def decide(monkeypatch: pytest.MonkeyPatch, *, adapted: float, hybrid: float = 0.5) -> list[tuple[str, int]]:
    """Let the start score 0.5 in both searches, and adapted models what is given; return who was asked how much."""
    asked: list[tuple[str, int]] = []

    def scores(name: str, data: Any, _: object) -> SearchScores:
        count = len(data.queries)
        asked.append((Path(name).name, count))
        mine = "share-" in name
        return SearchScores(np.full(count, adapted if mine else 0.5), np.full(count, hybrid if mine else 0.5))

    monkeypatch.setattr(question_adaptation, "_scores", scores)
    return asked


def adapt(corpus: Path, questions: Path, tiny: Path, output: Path) -> tuple[object, ...]:
    arguments = ("adapt", corpus, "--parent-key", "source", "--questions", questions)
    return (*arguments, "--model", tiny, "--output", output)


def test_a_better_model_is_the_folder(
    run: Run, corpus: Path, questions: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = decide(monkeypatch, adapted=0.9)
    done = run(*adapt(corpus, questions, tiny, tmp_path / "mine"))
    assert "Questions: 44 for training, 12 for development, 24 for test; no page answers in two parts" in done.stderr
    assert "The adapted model is better on queries that it has not seen: +40.0 points" in done.stdout
    assert "hybrid, adapted" in done.stdout
    assert "; in hybrid search, which is the default, 100 and 100." in done.stdout
    assert CDEModel.from_pretrained(tmp_path / "mine").identity.name == "mine"
    assert asked == [("share-0.5", 12), ("share-0.75", 12), ("share-1", 12), ("tiny", 24), ("share-0.5", 24)]
    told = json.loads((tmp_path / "mine/report.json").read_text())
    assert told["questions"] == {"training": 44, "development": 12, "test": 24}
    again = run(*adapt(corpus, questions, tiny, tmp_path / "mine"), code=1)
    assert "finished adaptation" in again.stderr.splitlines()[-1]


OWN_RECIPE = """
[[phases]]
name = "graded"
loss = { kind = "graded", temperature = 0.1, dims = [16, 8], layers = [1] }
[[phases]]
name = "improved"
batches = "packed"
batches_per_update = 2
loss = { kind = "improved" }
packing = { order = "random" }
corpora = { context = { documents = "batch" } }
"""


@pytest.mark.parametrize(
    "name",
    ["own", "paper-small", *(pytest.param(each, marks=pytest.mark.long) for each in PRESETS if each != "paper-small")],
)
def test_losses_samplers_and_presets_adapt_by_questions(
    run: Run,
    corpus: Path,
    questions: Path,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    decide(monkeypatch, adapted=0.9)
    (tmp_path / "own.toml").write_text(OWN_RECIPE)
    option = ("--config", tmp_path / "own.toml") if name == "own" else ("--preset", name)
    done = run(*adapt(corpus, questions, tiny, tmp_path / "mine"), *option)
    phases = [each for each in chosen_recipe(*_either(name, tmp_path / "own.toml")).phases if not each.data]
    with (tmp_path / "mine/work/run/log.csv").open() as file:
        rows = [row["phase"] for row in csv.DictReader(file) if row["loss"]]
    assert list(dict.fromkeys(rows)) == [each.name for each in phases]
    assert f"Training: {len(rows)} updates at most" in done.stderr
    told = json.loads((tmp_path / "mine/report.json").read_text())
    assert told["outcome"] in done.stdout
    assert [each["loss"]["kind"] for each in told["config"]["recipe"]["phases"]][-1] == phases[-1].loss.kind


def _either(name: str, path: Path) -> tuple[Path | None, str | None]:
    return (path, None) if name == "own" else (None, name)


@pytest.mark.parametrize(
    ("adapted", "hybrid", "reason"),
    [
        (0.5, 0.5, "the difference may be chance"),
        pytest.param(0.3, 0.9, "it is worse", marks=pytest.mark.long),
        (0.9, 0.4, "hybrid search finds less, -10.0 points"),
    ],
)
def test_a_model_that_does_not_surely_win_stands_aside(
    run: Run,
    corpus: Path,
    questions: Path,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    adapted: float,
    hybrid: float,
    reason: str,
) -> None:
    decide(monkeypatch, adapted=adapted, hybrid=hybrid)
    done = run(*adapt(corpus, questions, tiny, tmp_path / "mine"), "--json", code=NOT_BETTER)
    told = json.loads(done.stdout)
    assert told["verdict"].startswith("Keep your model")
    assert reason in told["verdict"]
    assert told["model"].endswith("mine/not-better")
    assert not (tmp_path / "mine/config.json").exists()


def test_a_stopped_training_resumes_and_nothing_is_mixed_in(
    run: Run, corpus: Path, questions: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real scores: training that hardly moves a model is chance."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    output = tmp_path / "mine"
    with monkeypatch.context() as patch:
        patch.setattr(question_adaptation, "train", stop)
        stopped = run(*adapt(corpus, questions, tiny, output), code=130)
    assert "Run the same command again to continue." in stopped.stderr
    made = (output / "work/prepared/tokens.npy").stat().st_mtime_ns
    other = run(*adapt(corpus, questions, tiny, output), "--seed", 1, code=1)
    assert "other settings" in other.stderr.splitlines()[-1]
    write_rows(questions, page_questions(page_records())[1:])
    another = run(*adapt(corpus, questions, tiny, output), code=1)
    assert "another corpus" in another.stderr.splitlines()[-1]
    write_rows(questions, page_questions(page_records()))
    monkeypatch.setattr(question_adaptation, "hard_negatives", stop)  # not needed again
    done = run(*adapt(corpus, questions, tiny, output), code=NOT_BETTER)
    assert "Keep your model" in done.stdout
    assert (output / "work/prepared/tokens.npy").stat().st_mtime_ns == made


def test_held_out_pages_are_in_nothing_that_is_prepared(
    run: Run, corpus: Path, questions: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the tokens on disk, of which training sees nothing but: of every passage each has letters of its own."""
    seen: list[Prepared] = []

    def look(data: Prepared, *_: object, **__: object) -> None:
        seen.append(data)
        raise KeyboardInterrupt

    monkeypatch.setattr(question_adaptation, "train", look)
    run(*adapt(corpus, questions, tiny, tmp_path / "mine"), code=130)
    (data,) = seen
    texts = [data.text(row) for row in range(len(data.texts))]
    found = question_material(read_own_questions(questions, own_corpus(), name="words"), seed=0, passages=1_000)
    held = {
        name.partition("#")[0] for part in (found.development, found.test) for row in part.judgments for name in row
    }
    records = page_records()

    def beginning(text: str) -> str:
        """A passage's first nine words, as the tokenizer gives them back."""
        return " ".join(text.split()[:9])

    apart = [one for one in records if one.metadata["source"] in held]
    used = [one for one in records if one.metadata["source"] not in held]
    assert apart
    assert [one.id for one in apart if any(beginning(one.text) in text for text in texts)] == []
    assert all(any(beginning(one.text) in text for text in texts) for one in used)


@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning", "ignore::cde_rag.errors.SmallContextWarning")
def test_pairs_have_hard_negatives_and_rehearsal(material: QuestionMaterial, tiny: Path) -> None:
    config = QuestionAdaptationConfig(model=str(tiny))
    rehearsed = rehearsal_pairs(material, own_corpus(), parent_key="source", seed=0)
    pairs = training_pairs(material, rehearsed, config, surrogate=stub_vectors)
    of = {source: [pair for pair in pairs if pair.source == source] for source in (QUESTIONS, TITLED, "corpus")}
    assert [len(each) for each in of.values()] == [44, 44, 44]
    for plain, titled in zip(of[QUESTIONS], of[TITLED], strict=True):
        assert titled.document == f"title {plain.parent} {plain.document}"
        assert len(plain.hard_negatives) == len(titled.hard_negatives) >= 12
        assert plain.document not in plain.hard_negatives
    fewer = training_pairs(material, rehearsed, replace(config, rehearsal=0.2), surrogate=stub_vectors)
    assert {pair.source for pair in fewer} == {QUESTIONS, TITLED}  # 18 would be too few for a batch


def test_a_recipe_is_the_plans() -> None:
    config = QuestionAdaptationConfig()
    (phase,) = recipe_of(config, {QUESTIONS: 110, TITLED: 110, "corpus": 110}, name="mine", null=True).phases
    assert (phase.corpora.batch_size, phase.corpora.context.smallest) == (32, 32)
    assert phase.schedule.updates == round(config.epochs * 165 / 32)
    assert (phase.loss.teacher, phase.loss.teacher_sources) == ("start", ("corpus",))
    assert (phase.corpora.context.null_share, phase.corpora.parents.apart_share) == (0.25, 0.5)
    (small,) = recipe_of(config, {QUESTIONS: 24, TITLED: 24}, name="mine", null=False).phases
    assert (small.corpora.batch_size, small.corpora.context.smallest) == (12, 12)
    assert (small.loss.teacher, small.corpora.context.null_share, small.context_dropout) == ("none", 0, 0)


def test_a_merge_is_in_all_tensors(tiny: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    checkpoints.write(other, tiny_network(seed=1), tiny_tokenizer())
    before, after = (CDEModel.from_pretrained(path).network.state_dict() for path in (tiny, other))
    for share, expected in ((0.0, before), (1.0, after)):
        merge_models(str(tiny), [other], tmp_path / f"{share:g}", share=share, name="mine")
        merged = CDEModel.from_pretrained(tmp_path / f"{share:g}")
        assert merged.identity.name == "mine"
        for name, value in merged.network.state_dict().items():
            np.testing.assert_allclose(value.float(), expected[name].float(), atol=1e-2, err_msg=name)


@pytest.fixture
def llm() -> Any:
    with fake_llm() as fake:
        fake.answer = three_questions
        yield fake


def test_a_language_model_writes_and_a_stopped_command_resumes(
    run: Run,
    corpus: Path,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    llm: FakeLLM,
) -> None:
    asked = decide(monkeypatch, adapted=0.9)
    monkeypatch.setenv("CDE_RAG_LLM_KEY", "secret")
    output = tmp_path / "mine"
    command = ("adapt", corpus, "--parent-key", "source", "--model", tiny, "--output", output)
    command = (*command, "--llm", llm.url, "--llm-questions", 99)

    def breaks(body: dict[str, Any]) -> str:
        if len(llm.asked) == 20:
            llm.status, llm.message = 400, "out of money"
        return three_questions(body).replace('"quote": "', '"quote": "not ' if len(llm.asked) == 5 else '"quote": "')

    llm.answer = breaks
    stopped = run(*command, code=1)
    assert "out of money Kept: 57 questions. Run the same command again" in stopped.stderr.splitlines()[-1]
    assert not asked
    llm.status = 200
    done = run(*command)
    assert len(llm.asked) == 21 + 14  # the one that failed is asked again
    assert "refused: 3 × a quote that is not in the page" in done.stderr
    assert "is better" in done.stdout
    assert set(llm.keys) == {"Bearer secret"}
    written = [json.loads(line) for line in (output / "questions.jsonl").read_text().splitlines()]
    assert len(written) == 99
    assert {one["kind"] for one in written} == {"plain", "named", "keyword"}
    assert not any(b"secret" in path.read_bytes() for path in output.rglob("*") if path.is_file())
    counts = json.loads((output / "report.json").read_text())["questions"]
    assert sum(counts.values()) == 99
    again = (*command[:4], "--output", tmp_path / "b", "--questions", output / "questions.jsonl", "--dry-run", "--json")
    assert json.loads(run(*again).stdout)["questions"] == counts


def test_a_dry_run_sends_and_writes_nothing(run: Run, corpus: Path, llm: FakeLLM, tmp_path: Path) -> None:
    command = ("adapt", corpus, "--parent-key", "source", "--output", tmp_path / "mine", "--llm", llm.url, "--dry-run")
    done = run(*command, "--llm-questions", 30)
    assert done.stdout.startswith("10 of 40 sections, of 10 pages, would be sent to http://127.0.0.1:")
    assert "<section>" in done.stdout
    told = json.loads(run(*command, "--json").stdout)
    assert (told["sections"], told["of"]) == (40, 40)
    assert not llm.asked
    assert not (tmp_path / "mine").exists()


def test_files_are_read_as_index_reads_them(run: Run, tiny: Path, tmp_path: Path) -> None:
    """Source code is read, which the rules of 0.2 leave out."""
    lines: list[str] = []
    for number in range(72):
        page = tmp_path / "src" / f"part_{number}.py"
        page.parent.mkdir(exist_ok=True)
        page.write_text(f'def step_{number}():\n    """Winds the spring number {number} of the old clock."""\n')
        quote = f"Winds the spring number {number}"
        lines.append(json.dumps({"question": f"wind {number}?", "answers": [{"page": page.name, "quote": quote}]}))
    asked = tmp_path / "asked.jsonl"
    asked.write_text("\n".join(lines))
    given = ("adapt", page.parent, "--questions", asked, "--model", tiny, "--output", tmp_path / "mine", "--dry-run")
    assert sum(json.loads(run(*given, "--json").stdout)["questions"].values()) == 72
    assert "--code" in run(*given, "--no-code", code=1).stderr


def test_wrong_uses_are_one_sentence(run: Run, corpus: Path, questions: Path, tiny: Path, tmp_path: Path) -> None:
    given = ("adapt", corpus, "--parent-key", "source", "--output", tmp_path / "mine")
    both = run(*given, "--questions", questions, "--llm", "http://localhost:1", code=2)
    assert "give --questions or --llm, not both" in both.stderr
    assert "give --llm, too" in run(*given, "--llm-model", "a", code=2).stderr
    no_address = run(*given, "--llm", "localhost:1", code=1)
    assert "CDE_RAG_LLM_KEY, not in the address" in one_sentence(no_address)
    minilm = run(*given, "--questions", questions, "--model", "minilm", code=1)
    assert "a finished model" in minilm.stderr.splitlines()[-1]
    unknown = run(*given, "--questions", questions, "--model", "cde-mini-7", code=1)
    assert "found 'cde-mini-7'" in unknown.stderr.splitlines()[-1]
    assert not (tmp_path / "mine").exists()
    old = run(*given, "--queries", questions, "--dry-run")  # the option's name in 0.9
    assert "44 for training" in old.stderr
