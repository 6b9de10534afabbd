"""Scores on questions are those of the obvious way: ranks of the passages that hold a quote, among the first ten."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_questions import write_corpus
from tiny import WORDS
from tiny_run import start_folder

from cde_rag.context.context import Context
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.embedders.protocol import EmbedderOptions
from cde_rag.errors import SmallContextWarning
from cde_rag.evaluation.answer_passages import PagePassage
from cde_rag.evaluation.answer_scores import (
    JudgedPassages,
    answer_difference,
    answer_scores,
    judged,
    mean_score,
    parts_of,
)
from cde_rag.evaluation.bm25 import word_hits
from cde_rag.evaluation.intervals import PairedQueries, compare
from cde_rag.evaluation.judged_questions import Answer, JudgedQuestion
from cde_rag.evaluation.question_folder import Site, read_corpora
from cde_rag.models import CDEModel
from cde_rag.search.fusion import fuse
from lab.experiments import user_questions
from lab.experiments.question_scores import System, read_judged, score_rows, system_rankings

SITES = "site,split,form\nbank,dev,people\nriver,dev,code\nrest,train,code\n"


def write_site(folder: Path, *, seed: int) -> None:
    """Twenty pages of random words, a question about every other one, and one that nothing answers."""
    draw = np.random.default_rng(seed)
    texts = {f"{page:02d}.txt": " ".join(draw.choice(WORDS, 12)) for page in range(20)}
    asked = []
    for number, (page, text) in enumerate(list(texts.items())[::2]):
        answers = [{"page": page, "quote": " ".join(text.split()[2:9])}]
        answers += [{"page": "19.txt", "quote": texts["19.txt"]}] if number == 3 else []
        query = " ".join(draw.choice(text.split(), 4))
        asked.append({"question": f"{query}?", "kind": ("plain", "named")[number % 2], "answers": answers})
    asked.append({"question": "fish", "kind": "plain", "answers": [{"page": "00.txt", "quote": "not here ever so"}]})
    write_corpus(folder, texts, asked)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("questions")
    for seed, name in enumerate(("river", "bank", "rest")):
        write_site(folder / name, seed=seed)
    (folder / "sites.csv").write_text(SITES)
    return folder


@pytest.fixture(scope="module")
def corpora(folder: Path) -> list[JudgedPassages]:
    return read_judged([folder], split="dev")


def test_passages_that_hold_a_quote_count(corpora: list[JudgedPassages]) -> None:
    bank, river = corpora
    assert (bank.site.name, river.site.form) == ("bank", "code")
    assert bank.found.tolist() == [*10 * [True], False]
    assert bank.answers[3] == {"06.txt#0", "19.txt#0"}
    assert len(np.unique(bank.blocks)) == 11


def test_answers_and_pages_are_ranked_among_ten_passages() -> None:
    """A page counts at the place of its first passage among distinct pages; the eleventh passage is not looked at."""
    passages = tuple(PagePassage(page, at, "", f"{page}{at}", f"{page}{at}") for page in "abcdef" for at in range(3))
    question = JudgedQuestion("1", "?", "", (Answer("c", "c2"),))
    data = JudgedPassages(Site("made"), passages, 3 * (question,), 3 * (frozenset({"c#2"}),))
    first = ["a#0", "a#1", "b#0", "c#0", "c#2"]
    late = [*data.ids[:6], *data.ids[9:13], "c#2"]
    found = answer_scores(data, [first, late, [*data.ids[:6], "c#1", "c#0", "d#0", "c#2"]])
    assert found.answers.tolist() == [1 / 5, 0, 1 / 10]
    assert found.pages.tolist() == [1 / 3, 0, 1 / 3]


def test_scores_are_those_of_the_script_that_the_published_figures_come_from(
    corpora: list[JudgedPassages], folder: Path, run_questions: Any
) -> None:
    draw = np.random.default_rng(3)
    for data in corpora:
        lines = (folder / data.site.name / "questions.jsonl").read_text().splitlines()
        judge = run_questions.Judge([json.loads(line) for line in lines])
        rankings = [[data.ids[at] for at in draw.permutation(20)] for _ in data.questions]
        text_of = {one.id: (one.page, one.text) for one in data.passages}
        theirs = [judge.score(at, [text_of[each] for each in ranking]) for at, ranking in enumerate(rankings)]
        ours = answer_scores(data, rankings)
        assert ours.answers.tolist() == [one["answer_mrr10"] for one in theirs]
        assert ours.pages.tolist() == [one["page_mrr10"] for one in theirs]


def test_rankings_are_those_of_the_embedder(corpora: list[JudgedPassages], tmp_path: Path) -> None:
    bank = corpora[0]
    start = start_folder(tmp_path / "start")
    model = CDEModel.from_pretrained(start, runtime="torch")
    for context in ("own", "null"):
        (found,) = system_rankings(System("tiny", str(start), context), [bank], tmp_path / "cache", seed=0)
        if context == "own":
            with pytest.warns(SmallContextWarning):
                embedder = ContextualEmbedder.from_corpus(
                    bank.texts, model=model, options=EmbedderOptions(mini_batch_size=64)
                )
        else:
            embedder = ContextualEmbedder(model, Context.null(model), options=EmbedderOptions(mini_batch_size=64))
        scores = embedder.embed_queries(bank.queries) @ embedder.embed_documents(bank.texts).T
        words = word_hits(bank.texts, bank.queries)
        for number, row in enumerate(scores):
            assert found["vectors"][number][:10] == [bank.ids[at] for at in np.argsort(-row, kind="stable")[:10]]
            vectors = [(str(at), float(row[at])) for at in np.argsort(-row, kind="stable")]
            assert set(found["hybrid"][number][:3]) == {bank.ids[int(at)] for at, _ in fuse(vectors, words[number])[:3]}


def test_rows_have_means_and_intervals_of_each_part(corpora: list[JudgedPassages], tmp_path: Path) -> None:
    start, other = start_folder(tmp_path / "start"), start_folder(tmp_path / "other")
    systems = [System("first", str(start), "null"), System("second", str(other), "own")]
    rows = {(row.part, row.system, row.by): row for row in score_rows(systems, corpora, tmp_path / "cache")}
    parts = ["all", "form code", "form people", "kind named", "kind plain", "bank", "river"]
    assert list(dict.fromkeys(part for part, *_ in rows)) == parts
    scores = [
        [answer_scores(data, found["hybrid"]) for data, found in zip(corpora, each, strict=True)]
        for each in (list(system_rankings(one, corpora, tmp_path / "cache", seed=0)) for one in systems)
    ]
    row = rows["all", "second", "hybrid"]
    assert row.answers == pytest.approx(np.mean([one.answers.mean() for one in scores[1]]))
    assert row.pages == pytest.approx(np.mean([one.pages.mean() for one in scores[1]]))
    gains = [two.answers - one.answers for one, two in zip(*scores, strict=True)]
    gain = compare([PairedQueries(one, data.blocks) for one, data in zip(gains, corpora, strict=True)])
    assert (row.gain, row.low, row.high) == (gain.mean, *gain.queries)
    assert (row.corpora_low, row.corpora_high) == gain.sets
    assert (rows["river", "second", "hybrid"].corpora, rows["river", "first", "hybrid"].gain) == (1, 0)
    named = rows["kind named", "second", "hybrid"]
    assert named.questions == 10
    assert named.gain == pytest.approx(np.mean([one[1:10:2].mean() for one in gains]))


def test_runtimes_give_the_same_scores(corpora: list[JudgedPassages], tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    system = System("tiny", str(start_folder(tmp_path / "start")), "own")
    by_torch, by_openvino = (
        score_rows([system], corpora, tmp_path / runtime, runtime=runtime) for runtime in ("torch", "openvino")
    )
    assert [row.answers for row in by_openvino] == pytest.approx([row.answers for row in by_torch], abs=0.02)
    of_torch, of_openvino = (
        {path.read_bytes() for path in (tmp_path / runtime).rglob("*.safetensors")} for runtime in ("torch", "openvino")
    )
    assert of_torch != of_openvino


def test_a_part_keeps_answers(folder: Path, corpora: list[JudgedPassages]) -> None:
    few = read_judged([folder], split="dev", passages=14)[0]
    assert len(few.passages) == 14
    assert few.answers == corpora[0].answers
    assert set().union(*few.answers) <= set(few.ids)
    assert [one.site.name for one in read_judged([folder, folder / "rest"], split="dev")] == ["bank", "river", "rest"]
    assert len(judged(next(iter(read_corpora(folder, ["bank"])))).part(1).passages) == 11


def test_a_mean_leaves_out_corpora_without_the_part(corpora: list[JudgedPassages]) -> None:
    masks = parts_of(corpora)["form code"]
    scores = [np.full(11, 0.5), np.full(11, 0.25)]
    assert mean_score(scores, masks) == 0.25
    assert answer_difference(corpora, scores, [one * 0 for one in scores], masks).mean == 0.25


def test_the_command(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    start = start_folder(tmp_path / "start")
    arguments = ["score", str(folder), "--split", "dev", "--model", f"tiny={start}", "--context", "null"]
    arguments += ["--context", "own", "--cache", str(tmp_path / "cache"), "--output", str(tmp_path / "rows.csv")]
    monkeypatch.setattr(sys, "argv", ["user_questions", *arguments])
    user_questions.main()
    assert "form people" in capsys.readouterr().out
    with (tmp_path / "rows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["system"], row["context"], row["by"]) for row in rows} == {
        ("tiny", context, by) for context in ("null", "own") for by in ("vectors", "hybrid")
    }
    monkeypatch.setattr(sys, "argv", ["user_questions", "publish", str(folder), str(tmp_path / "set.jsonl.gz")])
    with pytest.raises(Exception, match="quote of 'bank-011' is not in the page"):
        user_questions.main()
