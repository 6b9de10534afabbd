"""BEIR folders: what is read, and what each bad file is told."""

import gzip
import random
from pathlib import Path

import pytest
from beir_folders import write_lines, write_qrels, write_set

from cde_rag.errors import CorpusError
from cde_rag.evaluation import evaluate
from cde_rag.evaluation.beir import Corpus, RetrievalSet, read_beir, read_corpus

CORPUS = [
    {"_id": "d1", "title": "Cats", "text": "They purr."},
    {"_id": "d2", "text": "They bark.", "parent": "dogs"},
    {"_id": "d3", "title": "", "text": " ", "parent": "dogs"},
    {"_id": "d4", "title": None, "text": "They fetch.", "parent": "dogs", "meta": {"file": 2}},
]
QUERIES = {"q1": "who purrs", "q2": "who barks", "q3": "never judged", "d2": "judged as irrelevant"}
JUDGMENTS = [("q2", "d2", 2), ("q2", "d4", 1), ("q2", "d1", 0), ("q1", "d1", 1), ("q1", "d9", 1), ("d2", "d2", 0)]


@pytest.fixture(params=[".jsonl", ".jsonl.gz"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_set(tmp_path / "pets", CORPUS, QUERIES, JUDGMENTS, ending=request.param)


def test_a_set_is_read_whole(folder: Path) -> None:
    data = read_beir(folder)
    assert data.corpus.name == "pets"
    assert data.corpus.ids == ("d1", "d2", "d4")
    assert data.corpus.texts == ("Cats They purr.", "They bark.", "They fetch.")
    assert data.corpus.parents == (None, "dogs", "dogs")
    assert data.corpus.blank == 1
    assert data.query_ids == ("q1", "q2")  # in the order of the queries, those with a relevant document
    assert data.queries == ("who purrs", "who barks")
    assert data.judgments == ({"d1": 1, "d9": 1}, {"d2": 2, "d4": 1})  # d9 is not in the corpus: never found


def test_title_as_parent_leaves_the_text(folder: Path) -> None:
    corpus = read_corpus(folder, parent_key="title")
    assert corpus.texts == ("They purr.", "They bark.", "They fetch.")
    assert corpus.parents == ("Cats", None, None)


def test_a_dotted_parent(folder: Path) -> None:
    assert read_corpus(folder, parent_key="meta.file").parents == (None, None, "2")


def test_without_parents(tmp_path: Path) -> None:
    write_set(tmp_path / "one", CORPUS[:1], QUERIES, JUDGMENTS)
    assert read_beir(tmp_path / "one").corpus.parents is None


def test_a_split_has_its_own_judgments_and_may_have_its_own_queries(folder: Path) -> None:
    write_qrels(folder, "train", [("q1", "d4", 1)])
    assert read_beir(folder, split="train").judgments == ({"d4": 1},)
    write_qrels(folder, "dev", [("new", "d4", 1)])
    write_lines(folder / "queries_dev.jsonl.gz", [{"_id": "new", "text": "who fetches"}])
    assert read_beir(folder, split="dev").queries == ("who fetches",)


def test_blank_queries_are_left_out_and_counted(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d", "text": "a river"}\n')
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "river"}\n{"_id": "b", "text": " "}\n')
    judgments = tmp_path / "qrels" / "test.tsv"
    judgments.write_text("q\td\t1\nb\td\t1\n")
    data = read_beir(tmp_path)
    assert (data.query_ids, data.blank_queries) == (("q",), 1)
    with pytest.raises(CorpusError, match="1 blank queries and 0 judged documents"):
        evaluate([data], strict=True)
    judgments.write_text("q\td\t1\nq\tgone\t1\n")
    with pytest.raises(CorpusError, match=r"0 blank queries and 1 judged documents .*such as 'gone'"):
        evaluate([read_beir(tmp_path)], strict=True)
    judgments.write_text("b\td\t1\n")
    with pytest.raises(CorpusError, match="found 1 judged, all blank"):
        read_beir(tmp_path)


def test_numbers_are_ids_and_blank_lines_and_a_missing_header_do_no_harm(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "n", [{"_id": 7, "text": "seven"}], {}, [])
    (folder / "queries.jsonl").write_text('\n{"_id": 1, "text": "one"}\r\n\n')
    (folder / "qrels" / "test.tsv").write_text("1\t7\t1\r\n")
    data = read_beir(folder)
    assert (data.corpus.ids, data.query_ids, data.judgments) == (("7",), ("1",), ({"7": 1},))


def corpus_line(line: str):
    def spoil(folder: Path) -> None:
        good = '{"_id": "d1", "text": "good"}'
        (folder / "corpus.jsonl").write_text(f"{good}\n{line}\n")

    return spoil


def queries_line(line: str):
    def spoil(folder: Path) -> None:
        (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "good"}\n' + line + "\n")

    return spoil


def qrels(content: str):
    def spoil(folder: Path) -> None:
        (folder / "qrels" / "test.tsv").write_text(content)

    return spoil


def remove(name: str):
    def spoil(folder: Path) -> None:
        (folder / name).unlink()

    return spoil


def half_of_a_gzip(folder: Path) -> None:
    remove("corpus.jsonl")(folder)
    data = gzip.compress(b"".join(b'{"_id": "%d", "text": "%d"}\n' % (i, i * i) for i in range(1000)))
    (folder / "corpus.jsonl.gz").write_bytes(data[: len(data) // 2])


def no_gzip(folder: Path) -> None:
    (folder / "corpus.jsonl").rename(folder / "corpus.jsonl.gz")


def latin_1(folder: Path) -> None:
    (folder / "corpus.jsonl").write_bytes(
        '{"_id": "a", "text": "ok"}\n{"_id": "b", "text": "café"}\n'.encode("latin-1")
    )


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (remove("corpus.jsonl"), r"expected corpus\.jsonl or corpus\.jsonl\.gz"),
        (remove("queries.jsonl"), r"expected queries\.jsonl"),
        (remove("qrels/test.tsv"), r"the split 'test' in qrels/test\.tsv, found the splits: none"),
        (corpus_line("{"), r"corpus\.jsonl, line 2: expected a JSON object"),
        (corpus_line('{"_id": "1", "_id": "2"}'), "the key '_id' stands twice"),
        (corpus_line("[1]"), r"corpus\.jsonl, line 2: expected a JSON object, found '\[1\]'"),
        (corpus_line('{"text": "no id"}'), r"corpus\.jsonl, line 2: expected an id in '_id', found None"),
        (corpus_line('{"_id": "", "text": "x"}'), r"corpus\.jsonl, line 2: expected an id"),
        (corpus_line('{"_id": true, "text": "x"}'), r"corpus\.jsonl, line 2: expected an id"),
        (corpus_line('{"_id": "d1", "text": "x"}'), r"corpus\.jsonl, line 2: expected unique ids, found 'd1' again"),
        (corpus_line('{"_id": "d2"}'), r"corpus\.jsonl, line 2: expected a string in 'text', found None"),
        (corpus_line('{"_id": "d2", "text": 3}'), r"corpus\.jsonl, line 2: expected a string in 'text', found 3"),
        (corpus_line('{"_id": "d2", "text": "x", "title": 3}'), r"line 2: expected a string in 'title'"),
        (
            corpus_line('{"_id": "d2", "text": "x", "parent": [3]}'),
            r"line 2: expected a string or whole number in 'parent'",
        ),
        (lambda folder: write_lines(folder / "corpus.jsonl", [{"_id": "d1", "text": ""}]), "none that has a text"),
        (half_of_a_gzip, r"corpus\.jsonl\.gz: expected a readable file, stopped after line \d+"),
        (no_gzip, r"corpus\.jsonl\.gz: expected a readable file, stopped after line 0"),
        (latin_1, r"corpus\.jsonl, line 2: expected UTF-8"),
        (queries_line('{"_id": "q1", "text": "x"}'), r"queries\.jsonl, line 2: expected unique ids, found 'q1' again"),
        (qrels("h\th\th\nq1\td1\n"), r"test\.tsv, line 2: expected query id, corpus id and integer grade"),
        (qrels("h\th\th\nq1\td1\thigh\n"), r"test\.tsv, line 2: .* found 'q1\\td1\\thigh'"),
        (qrels("h\th\th\nq1 0 d1 1\n"), r"test\.tsv, line 2"),
        (qrels("h\th\th\nq1\td1\t0\n"), r"test\.tsv: expected a query with a relevant document"),
        (qrels("h\th\th\nq7\td1\t1\n"), r"found no query 'q7'"),
        (qrels("h\th\th\nq1\td7\t1\n"), r"expected documents of qrels/test\.tsv in the corpus, found none"),
        (qrels("h\th\th\nd2\td2\t1\n"), r"found only such as have their query's id"),
    ],
)
def test_bad_folders(tmp_path: Path, spoil, message: str) -> None:
    folder = write_set(tmp_path / "pets", CORPUS, QUERIES, JUDGMENTS)
    spoil(folder)
    with pytest.raises(CorpusError, match=message):
        read_beir(folder)


def test_other_mistakes(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "pets", CORPUS, QUERIES, JUDGMENTS)
    with pytest.raises(CorpusError, match=r"absent: expected a folder"):
        read_beir(tmp_path / "absent")
    with pytest.raises(CorpusError, match=r"the split 'dev' .* found the splits: test"):
        read_beir(folder, split="dev")
    with pytest.raises(CorpusError, match="parents in the field 'titel', found none"):
        read_beir(folder, parent_key="titel")


ONE_DOCUMENT = Corpus("one", ("d",), ("text",))


def of_queries(names: list[str]) -> RetrievalSet:
    return RetrievalSet(ONE_DOCUMENT, tuple(names), tuple(names), tuple({"d": 1} for _ in names))


def test_sampled_queries_depend_on_their_ids_alone() -> None:
    names = [f"q{i}" for i in range(50)]
    shuffled = random.Random(0).sample(names, 50)
    sample = of_queries(names).sample_queries(10).query_ids
    assert sample == tuple(sorted(sample, key=names.index))  # in their order
    assert set(of_queries(shuffled).sample_queries(10).query_ids) == set(sample)
    assert set(sample) < set(of_queries(names).sample_queries(20).query_ids)
    assert set(of_queries(names).sample_queries(10, seed=1).query_ids) != set(sample)
    assert of_queries(names).sample_queries(50).query_ids == tuple(names)
    assert {"q16", "q48"} <= set(sample)  # the rule stays what it is: figures depend on it


def test_blocks_are_the_best_documents() -> None:
    data = RetrievalSet(
        ONE_DOCUMENT,
        tuple("abcd"),
        tuple("abcd"),
        ({"x": 1, "y": 2}, {"y": 1, "z": 1}, {"z": 3, "y": 1}, {"y": 5}),
    )
    a, b, c, d = data.blocks
    assert a == b == d != c


def test_long_texts_are_split_under_their_documents_id_and_title(tmp_path: Path) -> None:
    corpus = [
        {"_id": "long", "title": "Rivers", "text": "One two three. Four five six. Seven eight nine."},
        {"_id": "short", "text": "One."},
        {"_id": "title", "title": "Only a title", "text": ""},
    ]
    folder = write_set(tmp_path / "set", corpus, {"q": "four"}, [("q", "long", 1)])
    found = read_beir(folder, max_characters=20).corpus
    assert found.ids == ("long", "long", "long", "short", "title")
    assert found.texts[:3] == ("Rivers One two three.", "Rivers Four five six.", "Rivers Seven eight nine.")
    assert found.texts[3:] == ("One.", "Only a title ")
    assert found.parents == ("long", "long", "long", None, None)
    with pytest.raises(CorpusError, match="expected parents in the field 'page'"):
        read_beir(folder, parent_key="page", max_characters=20)
    with pytest.raises(ValueError, match="at least 1"):
        read_beir(folder, max_characters=0)
