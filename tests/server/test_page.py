"""The page at `/` in a real browser: a search shows one list with the words marked, or four rankings; questions are
answered with citations; a library of documents takes files and moves to another context; texts are never HTML, nothing
is requested from elsewhere, and it works by keyboard, at phone width and in the dark."""

import json
import re
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
from playwright.sync_api import Browser, Page, Request, Route, expect, sync_playwright
from served import Running, make, running, texts

from cde_rag import Collection, Context, ContextualEmbedder
from cde_rag.collection.first_context import AT_ONCE, create_without_documents
from cde_rag.readers import ReadingRules, RecordReader
from cde_rag.search.fusion import Ranking
from cde_rag.server import job_routes
from cde_rag.server.access import ApiKeys
from cde_rag.server.comparison import CANDIDATES, NullRanker
from cde_rag.server.language_model import RemoteModel
from cde_rag.server.registry import ServedCollection
from cde_rag.stores.faiss import FaissStore

CHROMIUM = shutil.which("chromium")
HOSTILE = '<img src="http://evil.example/x" onerror="document.title=\'taken\'"><script>document.title="taken"</script>'
needs_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="the browser chromium is not installed")


def test_the_null_context_ranks_the_candidates(server: Running) -> None:
    """Its column is that of the library's embedder without a corpus, with the siblings that are stored."""
    served = server.service.registry.collection("papers")
    null = ContextualEmbedder(server.embedder.model, Context.null(server.embedder.model))
    columns = {one["name"]: one for one in server.post("/v1/collections/papers/compare", {"query": "river"})["columns"]}
    assert list(columns) == ["own", "null", "bm25", "hybrid"]
    ways: dict[str, Ranking] = {"own": "vectors", "bm25": "bm25", "hybrid": "hybrid"}
    for way, by in ways.items():
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

    def ids(self, place: str) -> list[str]:
        return self.page.locator(f"{place} li.hit").evaluate_all("items => items.map(item => item.dataset.id)")


GUIDE = """# Ferries

A boat stays at the bank of a river. **Loans** of [money](https://bank.example/) `flood(rate)`.

## Fish and flood

<!-- not run -->

| fish | rate |
| --- | --- |
| delta | 2 |

- a river
- a *boat*
  1. with money

```python
print("**bank**")
```
"""


def add_guide(server: Running, tmp_path: Path) -> Path:
    """Index a Markdown file of a folder in the collection notes."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/guide.md").write_text(GUIDE, encoding="utf-8")
    reader = RecordReader(tmp_path / "docs", reading=ReadingRules(characters=180))  # more than the tiny model reads
    server.service.registry.collection("notes").collection.add_records(reader)
    return tmp_path / "docs"


@needs_a_browser
def test_a_search_by_keyboard_alone(server: Running, browser: Browser) -> None:
    """The default ranking in one list, and the other rankings by a switch."""
    visit = Visit(browser, f"{server.url}/?collection=papers")
    page = visit.page
    expect(page.locator("#holds")).to_have_text("papers holds 40 passages of 10 documents.")
    page.locator("h1").click()
    page.keyboard.press("/")
    expect(page.get_by_label("Query")).to_be_focused()
    visit.search("river bank")
    served = server.service.registry.collection("papers").collection
    hits = served.search("river bank", by="hybrid")
    assert visit.ids("#hits") == [hit.id for hit in hits]
    marked = page.locator("#hits .text mark").all_text_contents()
    assert set(marked) == {"river", "bank"}
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    second = page.locator("#hits .open").nth(1)
    expect(second).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("dialog article.found")).to_contain_text(hits[1].text)
    assert page.locator("dialog article").count() >= 2
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(second).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_label("Query")).to_be_focused()
    page.get_by_label("Compare rankings").focus()
    page.keyboard.press("Space")
    expect(page.locator("section h2").locator("visible=true")).to_have_text(
        ["Default", "Meaning, with context", "Meaning, without context", "Words only"]
    )
    assert visit.ids("#column-hybrid") == [hit.id for hit in hits]
    expect(page.locator("#column-bm25 .facts").first).to_contain_text(re.compile(r"in the default|[↑↓] \d+"))
    first = page.locator("#column-own .open").first
    first.focus()
    id_ = page.locator("#column-own li").first.get_attribute("data-id")
    same = page.locator("li.same").evaluate_all("items => items.map(item => item.dataset.id)")
    assert set(same) == {id_}
    assert visit.errors == []
    assert {request.url.split("/")[2] for request in visit.requests if request.url.startswith("http")} == {
        server.url.removeprefix("http://")
    }
    page.close()


@needs_a_browser
def test_judgments_stay_and_are_saved(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers&q=river")
    page = visit.page
    expect(page.locator("#hits li").first).to_be_visible()
    id_ = page.locator("#hits li").first.get_attribute("data-id")
    page.locator("#hits .right").first.click()
    expect(page.locator("#count")).to_have_text("1 of 20 judged questions")
    visit.search("bank")
    page.locator("#hits .wrong").first.click()
    other = "1 of 20 judged questions; 1 more without a right hit does not count"
    expect(page.locator("#count")).to_have_text(other)
    page.locator("#hits .wrong").first.click()  # takes it back
    visit.search("river")
    page.reload()
    expect(page.locator(f'li[data-id="{id_}"] .right[aria-pressed=true]')).to_be_visible()
    page.get_by_role("link", name="Tune").click()
    expect(page.locator("#goal-label")).to_have_text("1 of 20 judged questions")
    expect(page.get_by_role("button", name="Tune", exact=True)).to_be_disabled()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save judged questions").click()
    assert json.loads(download.value.path().read_text()) == {"question": "river", "answers": [{"id": id_}]}
    page.get_by_role("button", name="Forget them").click()
    expect(page.locator("#goal-label")).to_have_text("0 of 20 judged questions")
    assert page.evaluate("localStorage.length") == 0
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_a_page_tunes_with_its_judgments(server: Running, browser: Browser) -> None:
    """Its button sends them, and the result is there after a reload, as that of every job."""
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    page = visit.page
    judged = [[text, [[f"r{number}", "right"]]] for number, text in enumerate(texts(24))]
    page.evaluate("judged => localStorage.setItem('cde-rag judged papers', JSON.stringify(judged))", judged)
    page.reload()
    expect(page.locator("#goal-label")).to_have_text("24 judged questions (20 are enough)")
    page.get_by_role("button", name="Tune", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("24 questions", timeout=60_000)
    expect(page.locator("#outcome")).to_contain_text(re.compile("^(Nothing changed: |Tuned on )"))
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()
    weight = server.get("/v1/collections/papers")["hybrid_weight"]
    expect(page.locator("#outcome")).to_contain_text(f"{weight}")
    page.reload()
    expect(page.locator("#jobs li")).to_contain_text("Tune the ranking")
    expect(page.locator("#jobs li")).to_contain_text("24 questions")
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_a_row_names_its_file_and_place(server: Running, browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/own.csv").write_text("id,text,source\na,river bank,elsewhere\n")
    server.service.registry.collection("notes").collection.add_records(RecordReader(tmp_path / "docs"))
    visit = Visit(browser, f"{server.url}/?collection=notes")
    visit.search("river bank")
    expect(visit.page.locator("#hits li .path").first).to_have_text("docs/own.csv · row 2")
    expect(visit.page.locator("#hits li .fields")).to_have_text("a · source: elsewhere")
    assert visit.errors == []
    visit.page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_a_hit_shows_the_fields_that_filters_name_on_one_line(
    server: Running, browser: Browser, tmp_path: Path
) -> None:
    """All of them where it is open; a passage of a file, and a row's digest, show none."""
    long = "fish " * 40
    server.service.registry.collection("notes").collection.add(
        ["river bank"], metadata=[{"tags": ["boat", 7], "empty": "", "object": {"x": 1}, "paid": True, "note": long}]
    )
    visit = Visit(browser, f"{server.url}/?collection=notes", viewport={"width": 390, "height": 844})
    page = visit.page
    visit.search("river")
    shown = f"tags: boat, 7 · paid: true · note: {long}".strip()
    expect(page.locator("#hits .fields")).to_have_text(shown)
    lines = "each => each.getBoundingClientRect().height / parseFloat(getComputedStyle(each).lineHeight)"
    assert page.locator("#hits .fields").evaluate(lines) == pytest.approx(1, abs=0.1)
    page.locator("#hits .open").click()
    expect(page.locator("#passage-fields")).to_have_text(shown)
    assert page.locator("#passage-fields").evaluate(lines) > 2
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Question", exact=True).fill("river")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".sources .fields")).to_have_text(shown)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.get_by_role("link", name="Search").click()
    add_guide(server, tmp_path)
    rows = tmp_path / "rows.csv"
    rows.write_text("text,minutes\na delta,25\n")
    server.service.registry.collection("notes").collection.add_records(RecordReader(rows))
    visit.search("delta")
    expect(page.locator("#hits .fields").filter(has_text="minutes")).to_have_text("minutes: 25")
    passage = page.locator('#hits li[data-id^="docs/guide.md"]').first
    expect(passage).to_be_visible()
    expect(passage.locator(".fields")).to_have_count(0)
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_nodes_of_llamaindex_show_their_files_and_not_their_bookkeeping(server: Running, browser: Browser) -> None:
    own = {"_node_content": "{}", "_node_type": "TextNode", "doc_id": "7f", "document_id": "7f", "ref_doc_id": "7f"}
    served = server.service.registry.collection("notes").collection
    files = ["usage.md", "install.md"]
    served.add([f"file_name: {n}\n\nriver bank" for n in files], metadata=[{"file_name": n, **own} for n in files])
    visit = Visit(browser, f"{server.url}/?collection=notes")
    visit.search("river")
    expect(visit.page.locator("#hits .fields").filter(has_text="usage")).to_have_text("file_name: usage.md")
    expect(visit.page.locator("#hits .open").filter(has_text="usage")).to_have_text("usage.md")
    expect(visit.page.locator("#facets legend")).to_have_text(["file_name"])
    assert visit.errors == []
    visit.page.close()


@needs_a_browser
def test_a_field_of_another_value_in_each_record_is_no_list_of_values(server: Running, browser: Browser) -> None:
    fields = [{"minutes": 10 + i, "opened": f"2025-03-0{i}", "kind": "ab"[i % 2]} for i in range(1, 7)]
    server.service.registry.collection("notes").collection.add(texts(6), metadata=fields)
    visit = Visit(browser, f"{server.url}/?collection=notes&q=river")
    page = visit.page
    expect(page.locator("#facets legend")).to_have_text(["kind", "minutes", "opened"])
    expect(page.locator("#facets [type=checkbox]")).to_have_count(2)
    page.get_by_label("from").fill("15")
    page.get_by_label("from").press("Tab")
    expect(page.locator("#status")).to_have_text("2 hits.")
    page.get_by_label("contains").fill("-06")
    page.get_by_label("contains").press("Tab")
    expect(page.locator("#status")).to_have_text("1 hit.")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#status")).to_have_text("6 hits.")
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_common_words_are_marked_only_where_a_query_has_no_others(server: Running, browser: Browser) -> None:
    server.service.registry.collection("notes").collection.add(["After the flood, all boats stay at the bank."])
    visit = Visit(browser, f"{server.url}/?collection=notes")
    for query, words in (("the boat after all", ["boats"]), ("after", ["After"])):
        visit.search(query)
        expect(visit.page.locator("#hits .text mark")).to_have_text(words)
    expect(visit.page.locator("#status")).to_have_text("1 hit.")
    assert visit.errors == []
    visit.page.close()


@needs_a_browser
def test_filters_are_fields_that_exist(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers")
    page = visit.page
    visit.search("river")
    expect(page.locator("#facets legend")).to_have_text(["book", "year"])
    book = page.get_by_label("b3 4", exact=True)
    book.check()
    expect(page.locator("#status")).to_have_text("4 hits.")
    served = server.service.registry.collection("papers").collection
    assert visit.ids("#hits") == [hit.id for hit in served.search("river", where={"book": "b3"}, by="hybrid")]
    page.get_by_label("from").fill("2013")
    page.get_by_label("from").press("Tab")
    expect(page.locator("#status")).to_have_text("3 hits.")
    expect(page.locator("#filter-count")).to_have_text(" (2)")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#status")).to_have_text("The 10 best hits.")
    page.get_by_role("button", name="More hits").click()
    expect(page.locator("#hits li")).to_have_count(20)
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_markdown_is_rendered_and_its_place_is_named(server: Running, browser: Browser, tmp_path: Path) -> None:
    add_guide(server, tmp_path)
    visit = Visit(browser, f"{server.url}/?collection=notes")
    page = visit.page
    page.get_by_role("button", name="Fish and flood").click()  # an example query is one of its headings
    hit = page.locator("#hits li").first
    expect(hit.locator(".path")).to_contain_text("docs/guide.md")
    shown = hit.locator(".text").inner_text()
    assert not {"**", "`", "|", "<!--", "](", "##"} & set(re.findall(r"\*\*|`|\||<!--|\]\(|##", shown))
    hit.locator(".open").click()
    found = page.locator("dialog article")
    expect(found.locator("td").first).to_have_text("delta")
    expect(found.locator("strong")).to_have_text("Loans")
    expect(found.locator("a")).to_have_attribute("href", "https://bank.example/")
    expect(found.locator("ul > li")).to_have_count(2)
    expect(found.locator("ol > li")).to_have_text("with money")
    expect(found.locator("pre")).to_have_text('print("**bank**")')
    expect(found.locator("mark").first).to_be_visible()
    assert "not run" not in found.first.inner_text()
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_texts_are_never_html(server: Running, browser: Browser) -> None:
    record = {"id": HOSTILE, "title": HOSTILE, "text": f"river {HOSTILE}", "metadata": {"section": HOSTILE}}
    server.post("/v1/collections/notes/records", {"records": [record]})
    visit = Visit(browser, server.url)
    visit.page.get_by_label("Collection").select_option("notes")
    visit.search(HOSTILE)
    expect(visit.page.locator("#hits .text")).to_have_text(f"river {HOSTILE}")
    visit.page.locator("#hits .open").click()
    expect(visit.page.locator("dialog article")).to_contain_text(HOSTILE)
    visit.page.keyboard.press("Escape")
    visit.page.get_by_role("link", name="Library").click()
    expect(visit.page.locator("#documents")).to_contain_text(HOSTILE)
    visit.page.get_by_role("link", name="Search").click()
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
    visit.page.get_by_text("As JSON", exact=True).click()
    visit.page.get_by_label("Query").fill("river")
    where = visit.page.get_by_label("Filter as JSON")
    for given, message in (("{", "The filter is no JSON"), ('{"year": {"near": 1}}', "near")):
        where.fill(given)
        visit.page.get_by_role("button", name="Search").click()
        expect(visit.page.get_by_role("alert")).to_contain_text(message)
    where.fill('{"year": 1}')
    visit.search("river")
    expect(visit.page.locator("#status")).to_contain_text("No passage matches.")
    expect(visit.page.locator("#problem")).to_be_hidden()
    visit.page.close()


@needs_a_browser
def test_a_server_with_keys_asks_for_one(tmp_path: Path, browser: Browser) -> None:
    service, _ = make(tmp_path, keys=ApiKeys(["secret"]))
    with running(service) as url:
        visit = Visit(browser, f"{url}/?collection=notes")
        expect(visit.page.get_by_role("alert")).to_contain_text("API key")
        visit.page.get_by_label("API key of this server").fill("secret")
        visit.page.get_by_label("API key of this server").press("Tab")
        expect(visit.page.get_by_label("Collection").locator("option")).to_have_count(2)
        expect(visit.page.get_by_label("Collection")).to_have_value("notes")  # that of the address
        visit.page.get_by_label("Collection").select_option("papers")
        visit.search("river")
        expect(visit.page.locator("#hits li")).to_have_count(10)
        assert visit.page.evaluate("localStorage.length + sessionStorage.length + document.cookie.length") == 0
        visit.page.close()


@needs_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_and_has_contrast(server: Running, browser: Browser, scheme: Any) -> None:
    visit = Visit(browser, server.url, viewport={"width": 390, "height": 844}, color_scheme=scheme)
    visit.page.get_by_label("Collection").select_option("papers")
    visit.search("river bank")
    wide = visit.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide == 0
    expect(visit.page.locator("#hits .open").first).to_be_in_viewport()
    visit.page.get_by_role("link", name="Chat").click()
    box = visit.page.get_by_label("Question", exact=True).bounding_box()
    assert box is not None
    assert box["width"] > 300
    visit.page.get_by_role("link", name="Search").click()
    for element in ("#status", ".hit .path", ".hit .text", "mark", ".hit .facts", "#search button", ".switch"):
        assert visit.page.locator(element).first.evaluate(CONTRAST) >= 4.5, element
    visit.page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_a_passage_on_a_phone_is_not_cut_and_can_be_closed(server: Running, browser: Browser, tmp_path: Path) -> None:
    """Below many lines of its neighbours, with code that is wider than the screen."""
    (tmp_path / "docs").mkdir()
    code = "```python\nferry.cross(river, loan_of_money_at_the_bank, flood_of_fish)\n```\n"
    pages = [f"## Part {n}\n\n{'A boat. ' * 5}\n\n{code}" for n in range(12)]
    (tmp_path / "docs/boats.md").write_text("# Boats\n\n" + "\n".join(pages), encoding="utf-8")
    reader = RecordReader(tmp_path / "docs", reading=ReadingRules(characters=180))
    server.service.registry.collection("notes").collection.add_records(reader)
    last = f"{server.url}/?collection=notes&passage=docs%2Fboats.md%239"
    visit = Visit(browser, last, viewport={"width": 390, "height": 844})
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.locator("article.found")).to_be_in_viewport()
    expect(visit.page.get_by_label("Close")).to_be_in_viewport()
    cut = "boxes => boxes.filter((box) => box.scrollWidth > box.clientWidth).length"
    assert dialog.locator("pre").count() > 0
    assert dialog.locator("pre").evaluate_all(cut) == 0
    visit.page.get_by_label("Close").click()
    expect(dialog).to_be_hidden()
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


@needs_a_browser
def test_the_address_keeps_the_filters(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers")
    page = visit.page
    visit.search("river")
    page.get_by_label("b3 4", exact=True).check()
    expect(page.locator("#status")).to_have_text("4 hits.")
    page.get_by_text("As JSON", exact=True).click()
    page.get_by_label("Filter as JSON").fill('{"year": {"gte": 2013}}')
    page.get_by_label("Filter as JSON").press("Tab")
    expect(page.locator("#status")).to_have_text("3 hits.")
    page.reload()
    expect(page.locator("#status")).to_have_text("3 hits.")
    expect(page.get_by_label("b3 4", exact=True)).to_be_checked()
    expect(page.locator("#filter-count")).to_have_text(" (2)")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#status")).to_have_text("The 10 best hits.")
    page.reload()
    expect(page.locator("#status")).to_have_text("The 10 best hits.")
    for wrong in ("[1]", "5", "{", '{"book": {"in": 5}}', '{"book": null}', '"a"'):
        page.goto(f"{server.url}/?collection=papers&q=river&filters={wrong}")
        expect(page.locator("#status")).to_have_text("The 10 best hits.")
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_a_passage_has_an_address_and_its_text_is_copied(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers&q=river")
    page = visit.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#hits .open").first.click()
    hit = server.service.registry.collection("papers").collection.search("river", 1)[0]
    page.get_by_role("button", name="Copy text").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == hit.text
    page.get_by_role("link", name="Link to this passage").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    expect(page.locator("dialog article.found")).to_contain_text(hit.text)
    assert visit.errors == []
    page.goto(f"{server.url}/?collection=papers&passage=gone")
    expect(page.get_by_role("alert")).to_have_text("The passage gone is no longer in the collection.")
    page.close()


@needs_a_browser
def test_the_library_says_that_it_loads_and_filters_at_once(server: Running, browser: Browser) -> None:
    visit = Visit(browser, "about:blank")
    page, held = visit.page, list[Route]()
    page.route("**/documents?*", lambda route: held.append(route))
    page.goto(f"{server.url}/?collection=papers#library")
    expect(page.locator("#shown")).to_have_text("Loading the documents …")
    page.wait_for_timeout(500)
    held.pop().continue_()
    expect(page.locator("#documents li")).to_have_count(10)
    page.get_by_label("Find a document").fill("B3")
    expect(page.locator("#documents li:visible .path")).to_have_text("b3")  # the answer is still held
    expect(page.locator("#shown")).to_have_text("Searching the documents …")
    page.wait_for_timeout(500)
    held.pop().continue_()
    expect(page.locator("#shown")).to_have_text("1 document that matches “B3”.")
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_directives_of_microsofts_markdown_and_kramdowns_attributes_are_not_shown(
    server: Running, browser: Browser
) -> None:
    text = """River bank. [!INCLUDE [a boat](../includes/boat.md)] First<br>second<br/>third.

> [!NOTE]
> Money.

[!VIDEO https://www.example.com/embed/1]

:::image type="content" source="media/a.png" alt-text="A flood":::
:::zone pivot="fish"
Write `<br>` in code.

```
<br> [!INCLUDE x]
```

See [a mill](mill.md){:target="_blank"}{: .wide #mill }, and {:ok, mill}.
"""
    server.service.registry.collection("notes").collection.add([text], metadata=[{"source": "a.md"}])
    visit = Visit(browser, f"{server.url}/?collection=notes&q=river")
    shown = visit.page.locator("#hits .text")
    expect(shown).to_have_text(re.compile(r"First second third\. Note: Money\. A flood Write <br> in code\."))
    visit.page.locator("#hits .open").click()
    found = visit.page.locator("dialog article")
    expect(found).to_contain_text("First second third.")
    expect(found.locator("blockquote strong")).to_have_text("Note:")
    expect(found.locator("pre")).to_have_text("<br> [!INCLUDE x]")
    assert "See a mill, and {:ok, mill}." in found.inner_text()
    assert not re.search(r":::|INCLUDE \[|VIDEO", found.inner_text())
    assert visit.errors == []
    visit.page.close()


@needs_a_browser
def test_a_query_that_is_typed_before_the_page_has_loaded_is_searched(server: Running, browser: Browser) -> None:
    visit = Visit(browser, "about:blank")
    page, held = visit.page, list[Route]()
    page.route("**/v1/collections", lambda route: held.append(route))
    page.goto(server.url)
    page.get_by_label("Query").fill("river")
    page.get_by_label("Query").press("Enter")
    expect(page.locator("#problem")).to_be_visible()  # there is no collection yet
    held.pop().continue_()
    expect(page.locator("#hits li")).to_have_count(10)
    expect(page.locator("#problem")).to_be_hidden()
    page.close()


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
    visit = Visit(browser, f"{chatting.url}/?collection=papers")
    page, outcome = visit.page, visit.page.locator("#outcome")

    page.get_by_role("link", name="Library").click()
    expect(page.locator("#summary")).to_contain_text("40 passages in 10 documents")
    page.get_by_label("Drop files here").set_input_files(guide)
    expect(outcome).to_contain_text("Passages: 1 added", timeout=60_000)
    expect(page.locator("#summary")).to_contain_text("41 passages in 11 documents")
    expect(page.locator("#documents")).to_contain_text("uploads/guide.md")

    page.get_by_role("link", name="Search").click()
    visit.search("where a boat stays")
    item = page.locator('#hits li[data-id="uploads/guide.md#0"]')
    item.get_by_role("button", name="Mark as right").click()
    page.locator("#hits li").last.get_by_role("button", name="Mark as wrong").click()
    page.get_by_role("link", name="Tune").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save for evaluation").click()
    assert download.value.suggested_filename == "papers-judged.zip"
    with zipfile.ZipFile(download.value.path()) as archive:
        grades = archive.read("qrels/test.tsv").decode().splitlines()
    assert grades[1] == "q0\tuploads/guide.md#0\t1"
    assert grades[2].endswith("\t0")

    page.get_by_role("link", name="Chat").click()
    expect(page.locator("#model")).to_contain_text("answers from the passages")
    page.get_by_label("Question", exact=True).fill("Where does a boat stay?")
    page.get_by_label("Question", exact=True).press("Enter")
    expect(page.locator(".answer .said")).to_have_text("Rivers have banks [1].", timeout=60_000)
    expect(page.get_by_role("heading", name="Passages that the answer cites")).to_be_visible()
    assert page.locator(".answer > .sources li").count() == 1
    first = papers.searcher("hybrid").search("Where does a boat stay?", 6)[0]
    page.locator(".answer .said .cite").click()
    expect(page.locator("dialog article.found")).to_contain_text(first.text)
    page.keyboard.press("Escape")

    page.get_by_role("link", name="Library").click()
    page.get_by_text("Draw another sample").click()
    page.get_by_label("Number of the sample").fill("7")
    page.get_by_role("button", name="Make a new context").click()
    expect(outcome).to_contain_text("Moved to a new context", timeout=60_000)
    assert papers.inspect().fingerprint != chatting.embedder.fingerprint
    page.get_by_text("Details of the collection").click()
    expect(page.locator("#facts")).to_contain_text(papers.inspect().fingerprint[:16])
    page.get_by_role("button", name="Roll back").click()
    expect(outcome).to_contain_text("Back in the context before", timeout=60_000)
    assert papers.inspect().fingerprint == chatting.embedder.fingerprint
    page.get_by_label("Find a document").fill("guide")
    expect(page.locator("#documents li")).to_have_count(1)
    page.get_by_role("button", name="Delete uploads/guide.md").click()
    page.get_by_role("button", name="Keep").click()
    assert papers.count() == 41
    page.get_by_role("button", name="Delete uploads/guide.md").click()
    page.locator("#sure-yes").click()
    expect(outcome).to_contain_text("uploads/guide.md is deleted: 1 passage.")
    assert papers.count() == 40
    page.reload()
    expect(page.locator("#jobs li")).to_have_count(3)
    expect(page.locator("#jobs")).to_contain_text("Add a file: guide.md")
    expect(page.locator("#jobs")).to_contain_text("Passages: 1 added")
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_an_answer_is_streamed_stopped_and_never_html(chatting: Running, llm: FakeLLM, browser: Browser) -> None:
    llm.pieces = [f"{HOSTILE} [1] [99] ", "the end"]
    llm.gate.clear()
    visit = Visit(browser, f"{chatting.url}/?collection=papers#chat")
    page = visit.page
    page.get_by_label("Question", exact=True).fill(HOSTILE)
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer .said")).to_contain_text("[99]")  # while the model still writes
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".answer .note")).to_have_text("Stopped.")
    assert llm.cut.wait(60)
    llm.gate.set()
    assert page.locator(".answer .said .cite").all_text_contents() == ["[1]"]  # there is no passage 99
    page.get_by_label("Question", exact=True).fill("And then?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer .said").last).to_contain_text("the end")
    condensing, answering = llm.asked[-2:]
    assert HOSTILE in condensing["messages"][1]["content"]
    expect(page.locator(".answer .note").last).to_contain_text("Searched for: ")
    sent = [turn["content"] for turn in answering["messages"][1:]]
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
    page.get_by_label("Question", exact=True).fill("Once more?")
    page.get_by_role("button", name="Ask", exact=True).click()
    failed = page.locator(".answer").last
    expect(failed.get_by_role("alert")).to_contain_text("no room")
    llm.status = 200
    failed.get_by_role("button", name="Ask again").click()
    expect(failed.locator(".said")).to_contain_text("the end")
    expect(failed.get_by_role("alert")).to_have_count(0)
    sent = [turn["content"] for turn in llm.asked[-1]["messages"][1:]]
    assert sent.count("Once more?") == 1
    page.close()


@needs_a_browser
def test_an_answer_that_breaks_off_is_shown_as_incomplete(chatting: Running, llm: FakeLLM, browser: Browser) -> None:
    llm.finish = None
    page = Visit(browser, f"{chatting.url}/?collection=papers#chat").page
    page.get_by_label("Question", exact=True).fill("Where is the river?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer .said")).to_contain_text("Rivers have banks")
    expect(page.locator(".answer").get_by_role("alert")).to_contain_text("broke off")
    expect(page.locator(".answer").get_by_role("alert")).to_contain_text("The answer is incomplete.")
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
    page.get_by_label("Question", exact=True).fill("The first river?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer .said")).to_contain_text("the beginning")
    page.get_by_role("button", name="New conversation").click()
    assert llm.cut.wait(60)
    llm.gate.set()
    page.get_by_label("Question", exact=True).fill("The second river?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer .said")).to_contain_text("the end")
    expect(page.locator("#talk > *")).to_have_count(2)  # the question and its answer
    page.get_by_text("Earlier conversations").click()
    page.get_by_role("button", name="The first river?").click()
    page.get_by_label("Question", exact=True).fill("And then?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer .said").last).to_contain_text("the end")
    sent = [(turn["role"], turn["content"]) for turn in llm.asked[-1]["messages"][1:]]
    assert [role for role, _ in sent] == ["user", "assistant", "user"]
    assert sent[1][1].startswith("the beginning")
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_roll_back_waits_for_an_earlier_generation(server: Running, browser: Browser) -> None:
    papers = server.service.registry.collection("papers").collection
    assert server.get("/v1/collections/papers")["earlier_generation"] is None
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    page, back = visit.page, visit.page.get_by_role("button", name="Roll back")
    expect(page.locator("#summary")).to_contain_text("40 passages")
    expect(back).to_be_disabled()
    expect(back).to_have_accessible_description("No earlier context is kept, so there is none to roll back to.")
    page.get_by_role("button", name="Make a new context").click()
    expect(page.locator("#outcome")).to_contain_text("Moved to a new context", timeout=60_000)
    expect(back).to_be_enabled()
    expect(page.locator("#no-rollback")).to_be_hidden()
    assert server.get("/v1/collections/papers")["earlier_generation"] == papers.store.generations()[0].number
    page.locator("#collection").select_option("notes")
    expect(page.locator("#summary")).to_contain_text("0 passages in 0 documents")
    expect(back).to_be_disabled()
    page.locator("#collection").select_option("papers")
    back.click()
    expect(page.locator("#outcome")).to_contain_text("Back in the context before.", timeout=60_000)
    expect(back).to_be_disabled()  # a later generation is none to roll back to
    assert server.get("/v1/collections/papers")["earlier_generation"] is None
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_a_first_index_that_was_stopped_is_a_sentence(tmp_path: Path, browser: Browser) -> None:
    """It goes when the same command has ended; vectors are not made in a context of a part."""
    service, embedder = make(tmp_path)
    store = FaissStore(tmp_path / "docs.faiss")
    half = Collection(store, create_without_documents(store, embedder.model, None, at=AT_ONCE))
    half.add(texts(70), embed="later")
    served = service.registry.collections | {"docs": ServedCollection("docs", half, has_bm25=True)}
    service.registry.collections = served
    with running(service) as url:
        server = Running(url, service, embedder)
        visit = Visit(browser, f"{url}/?collection=docs#library")
        page, said = visit.page, visit.page.locator("#unfinished")
        expect(page.locator("#summary")).to_contain_text("70 passages wait for vectors")
        expect(said).to_contain_text("if none runs, run the same command again: cde-rag index FOLDER COLLECTION")
        expect(page.locator("#fill")).to_be_hidden()
        assert [one["unfinished"] for one in server.get("/v1/collections")["data"]] == [False, False, True]
        page.get_by_role("link", name="Search").click()
        expect(said).to_be_visible()
        page.locator("#collection").select_option("papers")
        expect(said).to_be_hidden()
        page.get_by_role("link", name="Library").click()
        half.embed_pending()
        page.locator("#collection").select_option("docs")
        expect(page.locator("#summary")).to_contain_text("70 passages")
        expect(said).to_be_hidden()
        assert server.get("/v1/collections/docs")["unfinished"] is False
        assert visit.errors == []
        page.close()


@needs_a_browser
def test_files_that_come_before_the_collections_are_known_wait_for_them(server: Running, browser: Browser) -> None:
    """They go to the one that the address names; without any collection none can be chosen."""
    held: list[Route] = []
    page = browser.new_page()
    page.route("**/v1/collections", lambda route: held.append(route))
    page.goto(f"{server.url}/?collection=notes#library")
    page.get_by_label("Drop files here").set_input_files(
        [{"name": "a.txt", "mimeType": "text/plain", "buffer": b"A river."}]
    )
    page.evaluate(DROP, ["A bank.", "b.txt"])
    page.wait_for_timeout(300)
    page.get_by_role("link", name="Search").click()
    page.get_by_role("link", name="Library").click()
    expect(page.locator("#summary")).to_have_text("The collections are not loaded yet.")
    assert server.get("/v1/jobs")["data"] == []
    held[0].continue_()
    expect(page.locator("#outcome")).to_have_text("Passages: 2 added.", timeout=60_000)
    notes = server.service.registry.collection("notes").collection
    assert {record.metadata["source"] for record in notes.scroll()} == {"uploads/a.txt", "uploads/b.txt"}
    expect(page.locator("#problem")).to_be_hidden()
    page.unroute("**/v1/collections")
    page.route("**/v1/collections", lambda route: route.fulfill(json={"object": "list", "data": []}))
    page.reload()
    expect(page.locator("#summary")).to_have_text("This server has no collection.")
    expect(page.get_by_label("Drop files here")).to_be_disabled()
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_files_that_were_indexed_by_name_are_shown_without_the_paths_of_the_server(
    server: Running, browser: Browser, tmp_path: Path
) -> None:
    """By their names, with as many folders as tell them apart; what is stored has the paths."""
    files = {
        "a/read.txt": "A river.",
        "b/read.txt": "A river and a bank.",
        "boat.md": "# Boats\n\nA boat in a river.",
        "fish.csv": "text,year\nA fish in a river.,2020\nA delta.,2021\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    notes = server.service.registry.collection("notes").collection
    notes.add_records(RecordReader(*(tmp_path / name for name in files)))
    sources = {str(tmp_path / name) for name in files if not name.endswith("csv")}
    assert {record.metadata["source"] for record in notes.scroll() if "source" in record.metadata} == sources
    visit = Visit(browser, f"{server.url}/?collection=notes")
    page = visit.page
    expect(page.locator("#facets fieldset").filter(has_text="source")).to_contain_text("b/read.txt")
    for text in ("a/read.txt", "boat.md"):
        expect(page.locator("#facets")).to_contain_text(text)
    visit.search("river")
    paths = page.locator("#hits .path:not(.fields)")
    assert {text.partition(" · ")[0] for text in paths.all_inner_texts()} == {*files}
    page.locator("#hits li").filter(has_text="b/read.txt").get_by_role("button").first.click()
    expect(page.locator("#passage-path")).to_contain_text("b/read.txt")
    page.get_by_role("button", name="Close").click()
    page.locator("#facets").get_by_text("boat.md", exact=True).click()
    expect(page.locator("#hits li")).to_have_count(1)  # the filter has the path
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Compare rankings").check()
    expect(page.locator("#column-own .path:not(.fields)").filter(has_text="a/read.txt")).to_have_count(1)
    page.get_by_role("link", name="Library").click()
    expect(page.locator("#documents li")).to_have_count(5)
    for text in ("a/read.txt", "b/read.txt", "boat.md", "fish.csv, row 2"):
        expect(page.locator("#documents .path").get_by_text(text, exact=True)).to_have_count(1)
    page.evaluate(DROP, ["A river.", "read.txt"])
    said = "Other documents of the same name stay: a/read.txt, b/read.txt."
    expect(page.locator("#outcome")).to_contain_text(said, timeout=60_000)
    page.get_by_role("button", name="Delete a/read.txt").click()
    expect(page.locator("#sure-text")).to_contain_text("a/read.txt")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.locator("#outcome")).to_have_text("a/read.txt is deleted: 1 passage.")
    assert str(tmp_path) not in page.locator("main").inner_text()
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")
def test_the_reason_of_a_failed_job_stays(server: Running, browser: Browser) -> None:
    papers = server.service.registry.collection("papers").collection
    papers.recontextualize(seed=1)
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    page = visit.page
    expect(page.get_by_role("button", name="Roll back")).to_be_enabled()
    papers.store.drop(papers.store.generations()[0].number)  # another program does it
    page.get_by_role("button", name="Roll back").click()
    expect(page.locator("#problem")).to_contain_text("nothing to roll back", timeout=60_000)
    expect(page.locator("#job")).to_be_hidden()
    page.wait_for_timeout(1_000)  # the facts and collections are read again
    expect(page.locator("#problem")).to_contain_text("nothing to roll back")
    files: Any = [
        {"name": name, "mimeType": "text/markdown", "buffer": text}
        for name, text in (("empty.md", b""), ("full.md", b"# Rivers\n\nA river has a bank."))
    ]
    page.get_by_label("Drop files here").set_input_files(files)
    expect(page.locator("#outcome")).to_contain_text("1 added", timeout=60_000)
    page.wait_for_timeout(1_000)
    expect(page.locator("#problem")).to_contain_text("empty.md holds no text")
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Question", exact=True)).to_be_focused()
    expect(page.locator("#problem")).to_be_hidden()
    page.get_by_role("link", name="Library").click()
    page.evaluate(DROP, ["", "none.md"])
    page.evaluate("location.hash = 'chat'")
    expect(page.locator("#jobs .failed")).to_have_count(3, timeout=60_000)  # while another view is seen
    expect(page.locator("#problem")).to_be_hidden()
    page.get_by_role("link", name="Library").click()
    expect(page.locator("#problem")).to_contain_text("none.md holds no text")
    expect(page.locator("#summary")).to_contain_text("41 passages")
    expect(page.locator("#jobs .failed")).to_have_count(3)  # after a reload, too
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_files_are_dropped_and_read_again(tmp_path: Path, browser: Browser) -> None:
    service, embedder = make(tmp_path, files=((tmp_path / "docs").resolve(),))
    with running(service) as url:
        folder = add_guide(Running(url, service, embedder), tmp_path)
        notes = service.registry.collection("notes").collection
        visit = Visit(browser, f"{url}/?collection=notes#library")
        page = visit.page
        expect(page.locator("#documents")).to_contain_text("docs/guide.md")
        page.evaluate(DROP, ["A river.", "dropped.txt"])
        expect(page.locator("#outcome")).to_have_text("Passages: 1 added.", timeout=60_000)
        expect(page.locator("#documents li")).to_have_count(2)
        expect(page.locator("#documents li").last).to_contain_text("added 2")
        (folder / "guide.md").write_text("# Ferries\n\nA flood.\n", encoding="utf-8")
        page.get_by_role("button", name="Read docs/guide.md again").click()
        expect(page.locator("#outcome")).to_contain_text("deleted", timeout=60_000)
        assert "A flood." in " ".join(record.text for record in notes.scroll({"source": "docs/guide.md"}))
        expect(page.get_by_role("button", name="Read uploads/dropped.txt again")).to_have_count(0)
        assert visit.errors == []
        page.close()


@needs_a_browser
def test_a_button_makes_the_vectors_that_passages_wait_for(server: Running, browser: Browser) -> None:
    papers = server.service.registry.collection("papers").collection
    papers.add(["river", "bank"], metadata=[{"book": "more"}] * 2, embed="later")
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    expect(visit.page.locator("#summary")).to_contain_text("2 passages wait for vectors")
    visit.page.get_by_role("button", name="Make these vectors").click()
    expect(visit.page.locator("#outcome")).to_contain_text("Made the vectors of 2 passages.", timeout=60_000)
    expect(visit.page.locator("#jobs li")).to_contain_text("Make vectors")
    expect(visit.page.locator("#fill")).to_be_hidden()
    assert papers.pending == 0
    assert visit.errors == []
    visit.page.close()


DROP = """([text, name]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  const drop = new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer });
  document.querySelector("#drop").dispatchEvent(drop);
}"""


@needs_a_browser
def test_a_page_that_is_opened_amid_a_job_shows_what_came_of_it(server: Running, browser: Browser) -> None:
    gate, papers = threading.Event(), server.service.registry.collection("papers").collection

    def run(_: object) -> dict[str, Any]:
        gate.wait(60)
        return {"deleted": papers.delete(["r0"])}

    server.service.jobs.start("upload", "papers", run)
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    expect(visit.page.locator("#job-label")).to_contain_text("Add a file")
    expect(visit.page.locator("#summary")).to_contain_text("40 passages")
    gate.set()
    expect(visit.page.locator("#jobs li")).to_contain_text("Passages: 1 deleted.", timeout=60_000)
    expect(visit.page.locator("#summary")).to_contain_text("39 passages")
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
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    page = visit.page
    files: Any = [{"name": name, "mimeType": "text/plain", "buffer": b"A river."} for name in ("a.txt", "b.txt")]
    page.get_by_label("Drop files here").set_input_files(files)
    expect(page.locator("#job-label")).to_contain_text("Adding a.txt")
    page.locator("#collection").select_option("notes")
    expect(page.locator("#summary")).to_contain_text("0 passages in 0 documents")
    expect(page.locator("#job-label")).to_contain_text("papers: Adding a.txt")
    gate.set()
    expect(page.locator("#outcome")).to_contain_text("papers: Passages: 2 added", timeout=60_000)
    expect(page.locator("#summary")).to_contain_text("0 passages in 0 documents")
    page.locator("#collection").select_option("papers")
    expect(page.locator("#outcome")).to_have_text("")
    assert added == [(40, "a.txt"), (40, "b.txt")]
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_files_that_are_dropped_amid_a_job_wait_for_its_end(server: Running, browser: Browser) -> None:
    """Be it a job that the page shows, or another program's that began meanwhile."""
    gates = [threading.Event(), threading.Event()]

    def start(number: int) -> None:
        server.service.jobs.start("rollback", "papers", lambda _: {"waited": gates[number].wait(60)})

    start(0)
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    page = visit.page
    expect(page.locator("#job-label")).to_contain_text("Roll back")
    page.evaluate(DROP, ["A river.", "a.txt"])
    page.evaluate(DROP, ["A bank.", "b.txt"])
    expect(page.locator("#waiting")).to_have_text("2 files waiting to be added: a.txt, b.txt.")
    gates[0].set()
    expect(page.locator("#outcome")).to_have_text("Passages: 2 added.", timeout=60_000)
    expect(page.locator("#waiting")).to_be_empty()
    start(1)
    page.evaluate(DROP, ["A boat.", "c.txt"])
    expect(page.locator("#job-label")).to_contain_text("Roll back")
    expect(page.locator("#waiting")).to_have_text("1 file waiting to be added: c.txt.")
    gates[1].set()
    expect(page.locator("#outcome")).to_have_text("Passages: 1 added.", timeout=60_000)
    expect(page.locator("#summary")).to_contain_text("43 passages")
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_the_columns_of_a_table_without_a_text_are_chosen(server: Running, browser: Browser) -> None:
    """By keyboard, once for all files of the same columns; other files are added meanwhile."""
    visit = Visit(browser, f"{server.url}/?collection=notes#library", viewport={"width": 390, "height": 844})
    page = visit.page
    tables = {
        "may.csv": "ticket,subject,body\nM-1,Flood,A river is over its bank.\n",
        "june.csv": "ticket,subject,body\nJ-1,Loan,A bank has money.\n",
        "fish.jsonl": '{"fish": "eel", "where": "in the delta of a river"}\n',
        "boats.md": "# Boats\n\nA boat stays here.\n",
    }
    files: Any = [{"name": name, "mimeType": "", "buffer": text.encode()} for name, text in tables.items()]
    expect(page.locator("#summary")).to_contain_text("0 passages")
    page.get_by_label("Drop files here").set_input_files(files)
    expect(page.locator("#outcome")).to_have_text("Passages: 1 added.", timeout=60_000)
    expect(page.locator("#roles-heading")).to_have_text("2 files have no column “text”: may.csv, june.csv")
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#jobs li")).to_have_count(1)
    text, title, id_ = (page.get_by_label(role, exact=True) for role in ("Text", "Title", "Id"))
    expect(text).to_be_focused()
    assert [each.input_value() for each in (text, title, id_)] == ["body", "subject", ""]
    expect(text.locator("option[value=body]")).to_have_text("body · A river is over its bank.")
    expect(id_.locator("option:disabled")).to_have_count(2)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("t")  # the option that begins so
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Add", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#outcome")).to_have_text("Passages: 2 added.", timeout=60_000)
    notes = server.service.registry.collection("notes").collection
    assert [(each.title, each.text) for each in notes.get(["M-1", "J-1"])] == [
        ("Flood", "A river is over its bank."),
        ("Loan", "A bank has money."),
    ]
    expect(page.locator("#roles-heading")).to_have_text("fish.jsonl has no column “text”")
    assert text.input_value() == "where"
    page.reload()
    expect(page.locator("#lost-text")).to_contain_text("1 file was not added, as the page was left: fish.jsonl")
    expect(page.locator("#summary")).to_contain_text("3 passages")
    page.get_by_label("Drop files here").set_input_files(files[2])
    page.get_by_role("button", name="Leave out").click(timeout=60_000)
    expect(page.locator("#roles")).to_be_hidden()
    assert page.evaluate("sessionStorage.length") == 0
    assert notes.count() == 3
    assert visit.errors == []
    page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_files_that_a_reload_loses_are_named_until_they_are_dropped_again(server: Running, browser: Browser) -> None:
    gate = threading.Event()
    server.service.jobs.start("rollback", "papers", lambda _: {"waited": gate.wait(60)})
    visit = Visit(browser, f"{server.url}/?collection=papers#library")
    page = visit.page
    expect(page.locator("#job-label")).to_contain_text("Roll back")
    for name in ("a.txt", "b.txt"):
        page.evaluate(DROP, ["A river.", name])
    page.reload()
    said = "2 files were not added, as the page was left: a.txt, b.txt; drop them again."
    expect(page.locator("#lost-text")).to_have_text(said)
    gate.set()
    expect(page.locator("#job")).to_be_hidden()
    page.evaluate(DROP, ["A river.", "a.txt"])
    expect(page.locator("#outcome")).to_have_text("Passages: 1 added.", timeout=60_000)
    page.reload()
    expect(page.locator("#lost-text")).to_contain_text("as the page was left: b.txt; drop it again.")
    page.get_by_role("button", name="Dismiss").click()
    expect(page.locator("#lost")).to_be_hidden()
    assert page.evaluate("sessionStorage.length") == 0
    assert visit.errors == []
    page.close()


@needs_a_browser
def test_without_a_language_model_the_passages_are_shown_with_the_reason(server: Running, browser: Browser) -> None:
    visit = Visit(browser, f"{server.url}/?collection=papers#chat")
    expect(visit.page.locator("#model")).to_contain_text("no language model")
    option = visit.page.locator("#model code")
    expect(option).to_have_text("--llm ADDRESS")
    for width in range(320, 520, 20):  # at each of them the lines end elsewhere
        visit.page.set_viewport_size({"width": width, "height": 700})
        assert option.evaluate("each => each.getClientRects().length") == 1
    visit.page.get_by_label("Question", exact=True).fill("river bank")
    visit.page.get_by_role("button", name="Ask", exact=True).click()
    expect(visit.page.locator(".answer .said")).to_have_text("These passages match best.")
    expect(visit.page.locator(".sources .text")).to_have_count(6)
    assert set(visit.page.locator(".sources .text mark").all_text_contents()) == {"river", "bank"}
    visit.page.get_by_label("Collection").select_option("notes")
    visit.page.get_by_label("Question", exact=True).fill("river bank")
    visit.page.get_by_role("button", name="Ask", exact=True).click()
    expect(visit.page.locator(".answer .said")).to_contain_text("no passage")
    visit.page.close()


@needs_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_in_any_view(chatting: Running, browser: Browser, scheme: Any) -> None:
    still: Any = {"reduced_motion": "reduce"}  # colours amid a transition have no contrast yet
    visit = Visit(browser, chatting.url, viewport={"width": 390, "height": 844}, color_scheme=scheme, **still)
    page, axe = visit.page, Axe()
    page.get_by_label("Collection").select_option("papers")

    def check() -> None:
        found = axe.run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0

    expect(page.locator("#holds")).to_be_visible()
    check()
    visit.search("river bank")
    page.get_by_text("Filters", exact=True).click()
    page.locator("#hits .right").first.click()
    check()
    page.get_by_label("Compare rankings").check()
    expect(page.locator("#column-own .open").first).to_be_visible()
    check()
    page.locator("#column-own .open").first.click()
    expect(page.locator("dialog article.found")).to_be_visible()
    check()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Chat").click()
    page.get_by_label("Question", exact=True).fill("river")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".sources").first).to_be_visible()
    check()
    page.get_by_role("link", name="Library").click()
    expect(page.locator("#documents li").first).to_be_visible()
    page.get_by_text("Details of the collection").click()
    check()
    page.locator("#documents button").first.click()
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
    visit.page.get_by_label("Question", exact=True).fill("river")
    visit.page.get_by_role("button", name="Ask", exact=True).click()
    expect(visit.page.locator(".answer").get_by_role("alert")).to_contain_text("does not answer")
    visit.page.close()


@needs_a_browser
@pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
def test_a_text_that_is_made_to_be_slow_does_not_hold_up_the_page(server: Running, browser: Browser) -> None:
    """Each "![" may begin a picture, whose end is looked for to the end of the text."""
    slow = ["river " + "![" * 90_000, "a river " * 25_000]
    server.service.registry.collection("notes").collection.add(slow, ids=["marks", "words"])
    visit = Visit(browser, f"{server.url}/?collection=notes")
    visit.search("river")
    assert sorted(visit.ids("#hits")) == ["marks", "words"]
    assert visit.errors == []
    visit.page.close()
