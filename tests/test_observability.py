"""What is told of operations: their names, counts and fingerprints, and no text, id or metadata of anybody."""

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.errors import CorpusError
from cde_rag.model import CDEModel
from cde_rag.records import Record
from cde_rag.stores.faiss import FaissStore

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")

SECRET = "sesame"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter := InMemorySpanExporter()))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


@pytest.fixture
def papers(tmp_path: Path, tiny_model: CDEModel) -> Collection:
    return Collection.create(FaissStore(tmp_path / "papers"), ContextualEmbedder(tiny_model, Context.null(tiny_model)))


def told(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def test_spans_say_what_was_done(papers: Collection, spans: InMemorySpanExporter):
    papers.add(["river bank", "money loan", "fish"], ids=["a", "b", "c"])
    papers.search("river", k=2, where={"year": {"exists": False}})
    space = papers.embedder.fingerprint[:16]
    papers.delete(["a", "unknown"])
    papers.recontextualize(seed=1, context_size=2)
    found = spans.get_finished_spans()
    assert [span.name for span in found] == [
        *("cde_rag.embed", "cde_rag.add", "cde_rag.embed", "cde_rag.search", "cde_rag.delete"),
        *("cde_rag.embed", "cde_rag.recontextualize"),
    ]
    embed, add, _, search, delete, _, moved = found
    assert told(embed) == {"cde_rag.fingerprint": space, "cde_rag.documents": 3}
    assert told(add) == {"cde_rag.fingerprint": space, "cde_rag.documents": 3, "cde_rag.added": 3}
    assert told(search) == {
        "cde_rag.fingerprint": space,
        "cde_rag.queries": 1,
        "cde_rag.k": 2,
        "cde_rag.filtered": True,
        "cde_rag.hits": 2,
    }
    assert told(delete) == {"cde_rag.filtered": False, "cde_rag.documents": 1}
    assert told(moved) == {
        "cde_rag.generation": 2,
        "cde_rag.fingerprint": papers.embedder.fingerprint[:16],
        "cde_rag.documents": 2,
    }
    assert embed.parent is not None
    assert add.context is not None
    assert embed.parent.span_id == add.context.span_id


def test_of_an_error_there_is_the_type(papers: Collection, spans: InMemorySpanExporter):
    with pytest.raises(CorpusError, match=SECRET):
        papers.add_records([Record(SECRET, " ")])
    (span,) = spans.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert (told(span)["error.type"], span.status.description, span.events) == ("CorpusError", None, ())


words = st.text("abc ßλ", max_size=8).map(lambda text: f"{text}{SECRET}{text}")


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(words, min_size=1, max_size=4, unique=True), words, st.dictionaries(words, words, max_size=2))
def test_nothing_of_anybody_is_told(
    tmp_path_factory: pytest.TempPathFactory,
    tiny_model: CDEModel,
    spans: InMemorySpanExporter,
    caplog: pytest.LogCaptureFixture,
    texts: list[str],
    query: str,
    metadata: dict[str, str],
):
    embedder = ContextualEmbedder.from_corpus(texts, model=tiny_model, context_size=2)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "cde_rag"):
        papers = Collection.create(FaissStore(tmp_path_factory.mktemp("x") / "papers"), embedder, parent_key=SECRET)
        papers.add(texts, ids=texts, titles=texts, metadata=[metadata | {SECRET: query}] * len(texts))
        papers.search(query, where={SECRET: query})
        papers.search_diverse(query)
        space = papers.embedder.fingerprint
        papers.store.search(papers.store.vectors(texts[:1], fingerprint=space), 1, fingerprint=space)
        papers.delete(texts[:1])
        papers.delete(where={SECRET: query})
        with pytest.raises(CorpusError, match=SECRET):
            papers.add([" "], ids=texts[:1])
        with pytest.raises(KeyError, match=SECRET):
            papers.store.vectors([SECRET], fingerprint=space)
    assert len(spans.get_finished_spans()) >= 6
    assert len(caplog.records) >= 7
    for record in caplog.records:
        assert SECRET not in f"{record.getMessage()} {record.__dict__}"
    for span in spans.get_finished_spans():
        assert SECRET not in span.to_json()
        assert all(isinstance(value, int) or len(str(value)) <= 16 for value in told(span).values())


def test_log_records_say_it_too(papers: Collection, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.DEBUG, "cde_rag"):
        papers.store.search(np.eye(1, 16, dtype=np.float32), 1, fingerprint=papers.embedder.fingerprint)
        papers.search("river")
    embed, search = (record.getMessage() for record in caplog.records)
    assert embed.startswith("cde_rag.embed took ")
    assert search.endswith(
        f"'{papers.embedder.fingerprint[:16]}', 'queries': 1, 'k': 10, 'filtered': False, 'hits': 0}}"
    )


def test_nobody_has_to_have_opentelemetry():
    code = (
        "import sys\nfrom cde_rag._telemetry import operation\n"
        "with operation('cde_rag.search', {'k': 1}) as note: note({'hits': 2})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
