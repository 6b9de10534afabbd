"""The page at `/` in a real browser: what is searched is shown in four columns, questions are answered with citations,
a collection gets files and moves to another context, texts are never HTML, nothing is requested from elsewhere, and it
works by keyboard, at phone width and in the dark."""

import json
import shutil
import threading
import zipfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from fake_llm import FakeLLM, fake_llm
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright
from served import Running, make, running, texts

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.server import job_routes
from cde_rag.server.access import ApiKeys
from cde_rag.server.comparison import CANDIDATES, NullRanker
from cde_rag.server.language_model import RemoteModel

CHROMIUM = shutil.which("chromium")
HOSTILE = '<img src="http://evil.example/x" onerror="document.title=\'taken\'"><script>document.title="taken"</script>'
needs_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="the browser chromium is not installed")


def test_the_null_context_ranks_the_candidates(server: Running) -> None:
    """Its column is that of the library's embedder without a corpus, with the siblings that are stored."""
    served = server.service.registry.collection("papers")
    null = ContextualEmbedder(server.embedder.model, Context.null(server.embedder.model))
    columns = {one["name"]: one for one in server.post("/v1/collections/papers/compare", {"query": "river"})["columns"]}
    assert list(columns) == ["own", "null", "bm25", "hybrid"]
    for way, by in (("own", "vectors"), ("bm25", "bm25"), ("hybrid", "hybrid")):
        expected = [hit.id for hit in served.collection.searcher(by).search("river")]
        assert [hit["id"] for hit in columns[way]["hits"]] == expected
    records = list(served.collection.scroll())
    parents = [record.metadata["book"] for record in records]
    vectors = null.embed_documents([f"{record.title} {record.text}" for record in records], parents=parents)
    scores = dict(zip((record.id for record in records), vectors @ null.embed_queries(["river"])[0], strict=True))
    hits = columns["null"]["hits"]
    np.testing.assert_allclose([hit["score"] for hit in hits], [scores[hit["id"]] for hit in hits], atol=1e-5)
    ranker = NullRanker(server.service.registry.batcher)
    candidates = [hit.id for hit in served.collection.search("river", CANDIDATES, by="vectors")]
    ranked = [hit.id for hit in ranker.ranked(served, "river", candidates)]
    assert ranked == sorted(candidates, key=lambda id_: -scores[id_])
    assert ranker.ranked(served, "river", candidates)[0].id == ranked[0]  # from the vectors that were kept
    assert server.post("/v1/collections/notes/compare", {"query": "river"})["columns"][0]["hits"] == []


def test_a_comparison_names_the_fields_that_no_record_has(server: Running) -> None:
    asked = {"query": "river", "where": {"jaar": 2001}}
    found = server.post("/v1/collections/papers/compare", asked)
    assert [one.get("hits", []) for one in found["columns"]] == [[], [], [], []]
    (warning,) = found["warnings"]
    assert "No record has the field 'jaar'" in warning
    assert server.post("/v1/collections/papers/compare", {"query": "river"})["warnings"] == []


@pytest.fixture(scope="module")
def browser() -> Generator[Browser, None, None]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """A page with its console's errors and its requests."""

    def __init__(self, browser: Browser, url: str, **options: Any) -> None:
        self.page: Page = browser.new_page(**options)
        self.errors: list[str] = []
        self.requests: list[Request] = []
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.goto(url)

    def search(self, query: str) -> None:
        self.page.get_by_label("Query").fill(query)
        self.page.get_by_label("Query").press("Enter")
        expect(self.page.locator("#status")).not_to_have_text("Searching …")
        expect(self.page.locator("#status")).not_to_be_empty()


@needs_a_browser
def test_a_search_by_keyboard_alone(server: Running, browser: Browser, tmp_path: Path) -> None:
    visit = Visit(browser, server.url)
    page = visit.page
    page.get_by_label("Collection").select_option("papers")
    visit.search("river bank")
    headings = page.locator("section h2").all_text_contents()
    assert headings == ["Own context", "Null context", "BM25", "Hybrid"]
    served = server.service.registry.collection("papers").collection
    shown = page.locator("#column-hybrid li").evaluate_all("items => items.map(item => item.dataset.id)")
    assert shown == [hit.id for hit in served.search("river bank", by="hybrid")]
    expect(page.locator("#column-hybrid .facts").first).to_contain_text("own")
    first = page.locator("#column-own .open").first
    first.focus()
    id_ = page.locator("#column-own li").first.get_attribute("data-id")
    same = page.locator("li.same").evaluate_all("items => items.map(item => item.dataset.id)")
    assert set(same) == {id_}
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("dialog article.found")).to_contain_text(served.get([str(id_)])[0].text)
    assert page.locator("dialog article").count() >= 2
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(first).to_be_focused()
    page.locator("#column-own .right").first.click()
    expect(page.locator(f'li[data-id="{id_}"] .right[aria-pressed=true]').first).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save judged questions").click()
    assert json.loads(download.value.path().read_text()) == {"question": "river bank", "answers": [{"id": id_}]}
    assert visit.errors == []
    assert {request.url.split("/")[2] for request in visit.requests if request.url.startswith("http")} == {
        server.url.removeprefix("http://")
    }
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_texts_are_never_html(server: Running, browser: Browser) -> None:
    record = {"id": HOSTILE, "title": HOSTILE, "text": f"river {HOSTILE}", "metadata": {"section": HOSTILE}}
    server.post("/v1/collections/notes/records", {"records": [record]})
    visit = Visit(browser, server.url)
    visit.page.get_by_label("Collection").select_option("notes")
    visit.search(HOSTILE)
    expect(visit.page.locator("#column-own .text")).to_have_text(f"river {HOSTILE}")
    visit.page.locator("#column-own .open").click()
    expect(visit.page.locator("dialog article")).to_contain_text(HOSTILE)
    assert visit.page.title() == "cde-rag: search"
    assert visit.page.locator("main img, main script, dialog img, dialog script").count() == 0
    assert visit.errors == []
    assert all(request.url.startswith((server.url, "data:")) for request in visit.requests)
    blocked = visit.page.evaluate("fetch('http://evil.example/').then(() => 'sent', () => 'blocked')")
    assert blocked == "blocked"
    visit.page.close()


@needs_a_browser
def test_errors_and_empty_results_are_sentences(server: Running, browser: Browser) -> None:
    visit = Visit(browser, server.url)
    visit.page.get_by_label("Collection").select_option("papers")
    visit.page.get_by_text("Filter and number of hits").click()
    visit.page.get_by_label("Query").fill("river")
    where = visit.page.get_by_label("Filter over the metadata, as JSON")
    for given, message in (("{", "The filter is no JSON"), ('{"year": {"near": 1}}', "near")):
        where.fill(given)
        visit.page.get_by_role("button", name="Search").click()
        expect(visit.page.get_by_role("alert")).to_contain_text(message)
    where.fill('{"year": 1}')
    visit.search("river")
    expect(visit.page.locator("#status")).to_have_text("No passage matches.")
    expect(visit.page.locator("#problem")).to_be_hidden()
    visit.page.close()


@needs_a_browser
def test_a_server_with_keys_asks_for_one(tmp_path: Path, browser: Browser) -> None:
    service, _ = make(tmp_path, keys=ApiKeys(["secret"]))
    with running(service) as url:
        visit = Visit(browser, url)
        expect(visit.page.get_by_role("alert")).to_contain_text("API key")
        visit.page.get_by_label("API key of this server").fill("secret")
        visit.page.get_by_label("API key of this server").press("Tab")
        expect(visit.page.get_by_label("Collection").locator("option")).to_have_count(2)
        visit.page.get_by_label("Collection").select_option("papers")
        visit.search("river")
        expect(visit.page.locator("#column-own li")).to_have_count(10)
        assert visit.page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        visit.page.close()


@needs_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_has_contrast(server: Running, browser: Browser, scheme: Any) -> None:
    visit = Visit(browser, server.url, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    visit.page.get_by_label("Collection").select_option("papers")
    visit.search(texts(1)[0])
    wide = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0
    visit.page.get_by_role("navigation").get_by_text("Hybrid").click()
    expect(visit.page.locator("#column-hybrid h2")).to_be_in_viewport()
    visit.page.get_by_role("link", name="Chat").click()
    box = visit.page.get_by_label("Question").bounding_box()
    assert box is not None
    assert box["width"] > 300
    visit.page.get_by_role("link", name="Search").click()
    for element in ("#status", "section > p", "li .text", "li .facts", "button[type=submit]", "#about"):
        assert visit.page.locator(element).first.evaluate(CONTRAST) >= 4.5, element
    visit.page.close()


CONTRAST = """element => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).slice(0, 3).map((value) => value / 255)
      .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = element;
  while (/, 0\\)$|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const pair = [light(getComputedStyle(element).color), light(getComputedStyle(behind).backgroundColor)];
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


@needs_a_browser
def test_the_address_names_collection_and_query(server: Running, browser: Browser) -> None:
    visit = Visit(browser, server.url)
    visit.search("river & bank")
    assert "q=river+%26+bank" in visit.page.url
    again = Visit(browser, visit.page.url)
    expect(again.page.locator("li[data-id]").first).to_be_visible()
    assert again.page.locator("#query").input_value() == "river & bank"
    assert again.errors == []


@pytest.fixture
def llm() -> Generator[FakeLLM, None, None]:
    with fake_llm() as fake:
        yield fake


@pytest.fixture
def chatting(tmp_path: Path, llm: FakeLLM) -> Generator[Running, None, None]:
    service, embedder = make(tmp_path, language_model=RemoteModel(llm.url))
    with running(service) as url:
        yield Running(url, service, embedder)


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_a_day_at_the_page(chatting: Running, llm: FakeLLM, browser: Browser, tmp_path: Path) -> None:
    """Index, search, mark, chat, recontextualize, roll back."""
    guide = tmp_path / "guide.md"
    guide.write_text("# Ferries\n\nA boat stays at the bank of a river.\n", encoding="utf-8")
    papers = chatting.service.registry.collection("papers").collection
    visit = Visit(browser, chatting.url)
    page, outcome = visit.page, visit.page.locator("#outcome")
    page.get_by_label("Collection").select_option("papers")

    page.get_by_role("link", name="Collection").click()
    expect(page.locator("#facts")).to_contain_text("Passages40")
    page.get_by_label("Text or Markdown files").set_input_files(guide)
    page.get_by_role("button", name="Add").click()
    expect(outcome).to_contain_text("Passages: 1 added", timeout=60_000)
    expect(page.locator("#facts")).to_contain_text("Passages41")

    page.get_by_role("link", name="Search").click()
    visit.search("boat bank river")
    item = page.locator('#column-bm25 li[data-id="uploads/guide.md#0"]')
    item.get_by_role("button", name="Mark as right").click()
    page.locator("#column-bm25 li").last.get_by_role("button", name="Mark as wrong").click()
    expect(page.locator("#count")).to_have_text("1 query with judged passages.")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as BEIR set").click()
    assert download.value.suggested_filename == "papers-judged.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        grades = archive.read("qrels/test.tsv").decode().splitlines()
    assert grades[1] == "q0\tuploads/guide.md#0\t1"
    assert grades[2].endswith("\t0")

    page.get_by_role("link", name="Chat").click()
    expect(page.locator("#model")).to_contain_text(llm.url)
    page.get_by_label("Question").fill("Where does a boat stay?")
    page.get_by_label("Question").press("Enter")
    expect(page.locator(".answer .said")).to_have_text("Rivers have banks [1].", timeout=60_000)
    first = papers.searcher("hybrid").search("Where does a boat stay?", 6)[0]
    page.locator(".answer .said .cite").click()
    expect(page.locator("dialog article.found")).to_contain_text(first.text)
    page.keyboard.press("Escape")

    page.get_by_role("link", name="Collection").click()
    page.get_by_label("Random seed of the sample").fill("7")
    page.get_by_role("button", name="Recontextualize").click()
    expect(outcome).to_contain_text("Moved to context", timeout=60_000)
    assert papers.inspect().fingerprint != chatting.embedder.fingerprint
    expect(page.locator("#facts")).to_contain_text(papers.inspect().fingerprint[:16])
    page.get_by_role("button", name="Roll back").click()
    expect(outcome).to_contain_text("Back in context", timeout=60_000)
    assert papers.inspect().fingerprint == chatting.embedder.fingerprint
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_an_answer_is_streamed_stopped_and_never_html(chatting: Running, llm: FakeLLM, browser: Browser) -> None:
    llm.pieces = [f"{HOSTILE} [1] [99] ", "the end"]
    llm.gate.clear()
    visit = Visit(browser, f"{chatting.url}/?collection=papers#chat")
    page = visit.page
    page.get_by_label("Question").fill(HOSTILE)
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .said")).to_contain_text("[99]")  # while the model still writes
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".answer .note")).to_have_text("Stopped.")
    assert llm.cut.wait(60)
    llm.gate.set()
    assert page.locator(".answer .said .cite").all_text_contents() == ["[1]"]  # there is no passage 99
    page.get_by_label("Question").fill("And then?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .said").last).to_contain_text("the end")
    sent = [turn["content"] for turn in llm.asked[-1]["messages"][1:]]
    assert sent[0] == HOSTILE
    assert sent[-1] == "And then?"
    page.get_by_role("button", name="New conversation").click()
    expect(page.locator("#talk article")).to_have_count(0)
    page.get_by_text("Earlier conversations").click()
    page.locator("#conversations .cite").click()
    expect(page.locator("#talk article")).to_have_count(4)
    assert page.title() == "cde-rag: chat"
    assert page.locator("main img, main script").count() == 0
    assert visit.errors == []
    llm.status = 400
    page.get_by_label("Question").fill("Once more?")
    page.get_by_role("button", name="Ask").click()
    expect(page.get_by_role("alert")).to_contain_text("no room")
    page.close()


@needs_a_browser
def test_an_answer_that_breaks_off_is_shown_as_incomplete(chatting: Running, llm: FakeLLM, browser: Browser) -> None:
    llm.finish = None
    page = Visit(browser, f"{chatting.url}/?collection=papers#chat").page
    page.get_by_label("Question").fill("Where is the river?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .note")).to_have_text("The answer is incomplete.")
    expect(page.locator(".answer .said")).to_contain_text("Rivers have banks")
    expect(page.get_by_role("alert")).to_contain_text("broke off")
    page.close()


@needs_a_browser
def test_a_name_of_javascripts_own_is_no_view(server: Running, browser: Browser) -> None:
    for name in ("__proto__", "constructor", "toString"):
        visit = Visit(browser, f"{server.url}/?collection={name}#{name}")
        assert visit.page.title() == "cde-rag: search"
        expect(visit.page.locator("#view-search")).to_be_visible()
        assert visit.errors == []
        visit.page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_an_answer_that_is_left_stays_in_its_conversation(chatting: Running, llm: FakeLLM, browser: Browser) -> None:
    llm.pieces = ["the beginning ", "the end"]
    llm.gate.clear()
    visit = Visit(browser, f"{chatting.url}/?collection=papers#chat")
    page = visit.page
    page.get_by_label("Question").fill("The first river?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .said")).to_contain_text("the beginning")
    page.get_by_role("button", name="New conversation").click()
    assert llm.cut.wait(60)
    llm.gate.set()
    page.get_by_label("Question").fill("The second river?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .said")).to_contain_text("the end")
    expect(page.locator("#talk > *")).to_have_count(2)  # the question and its answer
    page.get_by_text("Earlier conversations").click()
    page.get_by_role("button", name="The first river?").click()
    page.get_by_label("Question").fill("And then?")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".answer .said").last).to_contain_text("the end")
    sent = [(turn["role"], turn["content"]) for turn in llm.asked[-1]["messages"][1:]]
    assert [role for role, _ in sent] == ["user", "assistant", "user"]
    assert sent[1][1].startswith("the beginning")
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_the_reason_of_a_failed_job_stays(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers#manage")
    page = visit.page
    page.get_by_role("button", name="Roll back").click()
    expect(page.locator("#problem")).to_contain_text("nothing to roll back", timeout=60_000)
    expect(page.locator("#job")).to_be_hidden()
    page.wait_for_timeout(1_000)  # the facts and collections are read again
    expect(page.locator("#problem")).to_contain_text("nothing to roll back")
    files: Any = [
        {"name": name, "mimeType": "text/markdown", "buffer": text}
        for name, text in (("full.md", b"# Rivers\n\nA river has a bank."), ("empty.md", b""))
    ]
    page.get_by_label("Text or Markdown files").set_input_files(files)
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#outcome")).to_contain_text("1 added", timeout=60_000)
    page.wait_for_timeout(1_000)
    expect(page.locator("#problem")).to_contain_text("empty.md holds no text")
    expect(page.locator("#facts")).to_contain_text("Passages41")
    page.close()


@needs_a_browser
def test_a_page_that_is_opened_amid_a_job_shows_what_came_of_it(server: Running, browser: Browser) -> None:
    gate, papers = threading.Event(), server.service.registry.collection("papers").collection

    def run(_: object) -> dict[str, Any]:
        gate.wait(60)
        papers.delete(["r0"])
        return {}

    server.service.jobs.start("upload", "papers", run)
    visit = Visit(browser, f"{server.url}/?collection=papers#manage")
    expect(visit.page.locator("#job-label")).to_contain_text("upload")
    expect(visit.page.locator("#facts")).to_contain_text("Passages40")
    gate.set()
    expect(visit.page.locator("#outcome")).to_have_text("upload: succeeded.", timeout=60_000)
    expect(visit.page.locator("#facts")).to_contain_text("Passages39")
    assert visit.errors == []
    visit.page.close()


@needs_a_browser
def test_a_job_whose_collection_is_left_names_it(
    server: Running, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, added = threading.Event(), list[tuple[int, str]]()

    def waits(collection: Collection, filename: str, *_: object) -> dict[str, Any]:
        gate.wait(60)
        added.append((collection.store.count(), filename))
        return {"added": 1, "replaced": 0, "unchanged": 0, "deleted": 0, "doubles": []}

    monkeypatch.setattr(job_routes, "uploaded", waits)
    visit = Visit(browser, f"{server.url}/?collection=papers#manage")
    page = visit.page
    files: Any = [{"name": name, "mimeType": "text/plain", "buffer": b"A river."} for name in ("a.txt", "b.txt")]
    page.get_by_label("Text or Markdown files").set_input_files(files)
    page.get_by_role("button", name="Add").click()
    expect(page.locator("#job-label")).to_contain_text("Adding a.txt")
    page.locator("#collection").select_option("notes")
    expect(page.locator("#facts")).to_contain_text("Passages0")
    expect(page.locator("#job-label")).to_contain_text("papers: Adding a.txt")
    gate.set()
    expect(page.locator("#outcome")).to_contain_text("papers: Passages: 2 added", timeout=60_000)
    expect(page.locator("#facts")).to_contain_text("Passages0")
    page.locator("#collection").select_option("papers")
    expect(page.locator("#outcome")).to_have_text("")
    assert added == [(40, "a.txt"), (40, "b.txt")]
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_without_a_language_model_the_passages_are_shown_with_the_reason(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers#chat")
    expect(visit.page.locator("#model")).to_contain_text("no language model")
    visit.page.get_by_label("Question").fill("river bank")
    visit.page.get_by_role("button", name="Ask").click()
    expect(visit.page.locator(".answer .said")).to_contain_text("no language model")
    expect(visit.page.locator(".sources .text")).to_have_count(6)
    visit.page.get_by_label("Collection").select_option("notes")
    visit.page.get_by_label("Question").fill("river bank")
    visit.page.get_by_role("button", name="Ask").click()
    expect(visit.page.locator(".answer .said")).to_contain_text("no passage")
    visit.page.close()


@needs_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_in_any_view(chatting: Running, browser: Browser, scheme: Any) -> None:
    visit = Visit(browser, chatting.url, viewport={"width": 360, "height": 740}, color_scheme=scheme)
    page, axe = visit.page, Axe()
    page.get_by_label("Collection").select_option("papers")

    def check() -> None:
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0

    visit.search("river bank")
    check()
    page.locator("#column-own .open").first.click()
    expect(page.locator("dialog article.found")).to_be_visible()
    check()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Question").fill("river")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator(".sources")).to_be_visible()
    check()
    page.get_by_role("link", name="Collection").click()
    expect(page.locator("#facts div").first).to_be_visible()
    check()
    page.close()


@needs_a_browser
def test_a_server_that_has_gone_is_a_sentence(tmp_path: Path, browser: Browser) -> None:
    service, _ = make(tmp_path)
    with running(service) as url:
        visit = Visit(browser, url)
        expect(visit.page.get_by_label("Collection").locator("option")).to_have_count(2)
    visit.page.get_by_label("Query").fill("river")
    visit.page.get_by_label("Query").press("Enter")
    expect(visit.page.get_by_role("alert")).to_contain_text("does not answer")
    visit.page.get_by_role("link", name="Chat").click()
    visit.page.get_by_label("Question").fill("river")
    visit.page.get_by_role("button", name="Ask").click()
    expect(visit.page.get_by_role("alert")).to_contain_text("does not answer")
    visit.page.close()
