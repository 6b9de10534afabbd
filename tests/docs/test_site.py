"""The site builds with warnings as errors, and holds what it says."""

import csv
import html
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.main import get_command

from cde_rag.cli import app
from cde_rag_training.cli import app as training

from pages import ROOT  # isort: skip
from rendered import broken_links, faults  # isort: skip


EXECUTED = {"07_experiments": 8}  # a quick notebook, and how many figures it draws
BUILD = """
import sys
from pathlib import Path

sys.path.insert(0, "docs/hooks")
import notebooks
from mkdocs.__main__ import cli

folder, *chosen = sys.argv[1:]
notebooks.EXECUTED = Path(folder, "notebooks")
notebooks.main(chosen)
cli(["build", "--strict", "--site-dir", f"{folder}/site"])
"""
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "CDE_RAG_SHORT"} | {"NO_MKDOCS_2_WARNING": "1"}
PUBLIC = (  # modules whose __all__ the reference holds
    "cde_rag", "cde_rag.evaluation", "cde_rag.stores.faiss", "cde_rag.stores.qdrant", "cde_rag.stores.qdrant_edge",
    "cde_rag_training", "langchain_cde", "llama_index.embeddings.cde", "llama_index.vector_stores.cde",
    "haystack_integrations.components.embedders.cde", "haystack_integrations.components.retrievers.cde",
    "haystack_integrations.document_stores.cde",
)  # fmt: skip
NOT_EXPLAINED = {"FLAT_ROWS", "SYSTEMS"}  # a number; the guide has these in a table


def hook_module(name: str) -> Any:
    """A module of docs/hooks."""
    spec = importlib.util.spec_from_file_location(f"{name}_hook", ROOT / f"docs/hooks/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    hook: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def seen(page: str) -> str:
    """What a reader of HTML sees."""
    return html.unescape(re.sub(r"<[^>]+>", "", page))


def said(page: str) -> str:
    """What a reader of HTML sees, without white space and punctuation."""
    return re.sub(r"\W", "", seen(page))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make docs` builds it, but for the notebooks that take minutes: they have no outputs."""
    pytest.importorskip("mkdocstrings_handlers.python", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder), *EXECUTED],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    """`--quiet` would take warnings from `--strict` too."""
    (line,) = [line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "mkdocs build" in line]
    assert "--strict" in line
    assert "--quiet" not in line
    assert '"--strict", "--site-dir"' in BUILD
    (tmp_path / "docs").mkdir()
    empty = "plugins: []\nhooks: []\nextra_css: []\nnav: null\n"
    (tmp_path / "mkdocs.yml").write_text(f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\n{empty}")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    for link, code in (("#here", 0), ("#gone", 1), ("gone.md", 1)):
        (tmp_path / "docs" / "index.md").write_text(f"# Here\n\n[a link]({link})\n")
        done = subprocess.run(build, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "examples").glob("[0-9]*.py"))])
def test_a_notebook_is_a_page_with_its_outputs(site: Path, name: str) -> None:
    """All cells and what they printed, in their order, and the figures as they were drawn."""
    import nbformat

    page = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
    figures = re.findall(rf'<img alt="(.+?)" src="({name}-\d+\.png)"', page)
    assert len(figures) == EXECUTED.get(name, 0)
    assert ("the outputs are those of its last run" in page) == (name in EXECUTED)
    if name not in EXECUTED:
        assert "output" not in re.findall(r'<div class="([^"]*)highlight', page)
        return
    executed = nbformat.read(site.parent / "notebooks" / f"{name}.ipynb", as_version=4)
    drawn = []
    text, place = said(page), 0
    for cell in executed.cells:
        parts = [cell.source] if cell.cell_type == "code" else re.findall(r"^#+ (.+)$", cell.source, re.MULTILINE)
        for output in cell.get("outputs", []):
            parts += [output.text] if output.get("name") == "stdout" else []
            drawn += [data["image/png"] for data in [output.get("data", {})] if "image/png" in data]
        for part in parts:
            place = text.find(said(html.escape(re.sub(r"\x1b\[[0-9;]*m", "", part))), place)
            assert place >= 0, part
    assert [b64encode((site / "notebooks" / source).read_bytes()).decode() for _, source in figures] == [
        "".join(image.split()) for image in drawn
    ]


def test_all_that_is_public_is_in_the_reference(site: Path) -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    documented = {name.rsplit(".", 1)[-1] for name in re.findall(r'id="([\w.]+\.[\w.]+)"', pages)}
    public = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert public - documented - NOT_EXPLAINED == set(), "name them on a page of docs/reference"


def test_the_quality_of_models_is_that_of_the_tables(site: Path) -> None:
    """Each mean beside MiniLM stands on the page, with its ends, rounded as by hand."""
    page = (site / "benchmarks.html").read_text(encoding="utf-8")
    cells = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    for name in ("bundled-models", "test-models"):
        with (ROOT / f"lab/tables/{name}.csv").open(encoding="utf-8", newline="") as lines:
            means = [row for row in csv.DictReader(lines) if (row["corpus"], row["against"]) == ("mean", "minilm")]
        assert len(means) >= 7
        for row in means:
            model, given, ndcg = row["model"], row["given"] or "the text", f"{float(row['ndcg']) * 100:.1f}"
            (found,) = [each for each in cells if each[:3] == [model, given, ndcg]]
            ends = [float(end.replace("−", "-")) for end in re.findall(r"[+−]\d+\.\d", " ".join(found[3:]))]
            keys = ("gain", "low", "high", "sets_low", "sets_high")
            expected = [] if model == "minilm" else [pytest.approx(100 * float(row[key]), abs=0.051) for key in keys]
            assert ends == expected


def commands(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """A command and those inside it that help shows."""
    yield command, context
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, click.Context(inner, info_name=name, parent=context))


@pytest.mark.parametrize(("name", "program"), [("cde-rag", app), ("cde-rag-train", training)], ids=["core", "training"])
def test_every_command_is_explained_with_all_its_options(site: Path, name: str, program: typer.Typer) -> None:
    page = (site / "cli.html").read_text(encoding="utf-8")
    sections = {part[: part.index('"')]: said(f"<{part}") for part in re.split(r'<h\d id="', page)[1:]}
    top = get_command(program)
    found = list(commands(top, click.Context(top, info_name=name)))
    assert len(found) >= 8
    for command, context in found:
        section = sections[context.command_path.replace(" ", "-")]
        for paragraph in (command.help or "").split("\n\n"):
            assert said(html.escape(paragraph.replace("\b", ""))) in section
        for parameter in command.get_params(context):
            record = parameter.get_help_record(context)
            if record and not getattr(parameter, "hidden", False) and "--help" not in record[0]:
                assert all(said(html.escape(text)) in section for text in record), record


@pytest.mark.parametrize(
    ("page", "source"),
    [
        ("changes.html", "CHANGELOG.md"),
        ("contributing.html", "CONTRIBUTING.md"),
        ("notice.html", "NOTICE"),
        ("notebooks/index.html", "examples/README.md"),
        ("integrations/langchain.html", "integrations/langchain-cde/README.md"),
    ],
)
def test_pages_from_outside_the_docs_hold_their_text(site: Path, page: str, source: str) -> None:
    text = said((site / page).read_text(encoding="utf-8"))
    shown = re.sub(r"<!--.*?-->", "", (ROOT / source).read_text(encoding="utf-8"), flags=re.DOTALL)
    plain = re.findall(r"[A-Za-z][A-Za-z ,;:.]{24,}", shown)
    assert len(plain) >= 10
    assert [part for part in plain if said(part) not in text] == []


def test_pages_that_are_made_hold_what_they_are_made_of(site: Path) -> None:
    decisions = said((site / "decisions/index.html").read_text(encoding="utf-8"))
    for path in (ROOT / "docs/decisions").glob("*.md"):
        assert said(path.read_text(encoding="utf-8").splitlines()[0].replace("`", "")) in decisions
    grammar = importlib.import_module("cde_rag.stores.filters").__doc__ or ""
    assert said(html.escape(grammar.split("\n\n")[1])) in said(
        (site / "guide/filters.html").read_text(encoding="utf-8")
    )
    for page, other in (("notebooks/07_experiments.html", "05_tune.html"),):
        assert f'href="{other}" class="md-nav__link"' in (site / page).read_text(encoding="utf-8"), (
            "not in the navigation"
        )


def test_old_addresses_lead_to_pages(site: Path) -> None:
    with (ROOT / "docs/hooks/redirects.csv").open(encoding="utf-8", newline="") as lines:
        moved = {row["old"]: row["new"] for row in csv.DictReader(lines)}
    assert len(moved) >= 37
    for old, new in moved.items():
        page = (site / old).read_text(encoding="utf-8")
        (link,) = re.findall(r'http-equiv="refresh" content="0; url=(.+?)"', page)
        path, _, anchor = link.partition("#")
        target = (site / old).parent / path
        assert target.resolve() == (site / new.partition("#")[0]).resolve()
        assert not anchor or f'id="{anchor}"' in target.read_text(encoding="utf-8"), new


def test_a_redirect_has_a_target_and_hides_no_page(tmp_path: Path) -> None:
    hook = hook_module("redirects")
    (tmp_path / "guide").mkdir()
    (tmp_path / "guide/new.html").touch()
    hook.write(tmp_path, {"old/page.html": "guide/new.html#here"})
    assert 'url=../guide/new.html#here"' in (tmp_path / "old/page.html").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match=r"no page guide/gone\.html"):
        hook.write(tmp_path, {"old/other.html": "guide/gone.html"})
    with pytest.raises(ValueError, match=r"has a page at the old address guide/new\.html"):
        hook.write(tmp_path, {"guide/new.html": "guide/new.html"})


def test_search_finds_pages_for_users_first(site: Path) -> None:
    """The index weighs decisions, experiments and changes so low that a word in their titles comes after any other."""
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    weights: dict[str, set[float]] = {}
    for entry in index:
        weights.setdefault(entry["location"].partition("#")[0], set()).add(entry.get("boost", 1))
    behind = {page for page in weights if re.match(r"decisions/|experiments/|(changes|contributing|notice)\.", page)}
    assert len(behind) >= 15
    assert {weight for page in behind for weight in weights[page]} == {1e-4}
    assert {weight for page in weights.keys() - behind for weight in weights[page]} == {1}
    assert {"guide/search.html", "reference/stores.html", "cli.html"} <= weights.keys() - behind


def shape(cell: str) -> str:
    """A cell without code marks, and without decimals: a page rounds them."""
    return re.sub(r"-?\d+\.\d+(e-?\d+)?", "#", cell.replace("`", ""))


def test_tables_of_figures_stand_on_the_page(site: Path) -> None:
    page = (site / "benchmarks.html").read_text(encoding="utf-8")
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    shown = [[shape(seen(cell)) for cell in row] for row in rows]
    sources = re.findall(r"<!-- table: (\S+) -->", (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8"))
    assert sources
    for source in sources:
        with (ROOT / "docs" / source).open(encoding="utf-8", newline="") as lines:
            _, *written = csv.reader(lines)
        assert [row for row in written if [shape(cell) for cell in row] not in shown] == []


def test_pictures_of_the_pages_are_there(site: Path) -> None:
    shown = [
        (page, source)
        for page in site.rglob("*.html")
        for source in re.findall(r'<img[^>]* src="([^":]+)"', page.read_text(encoding="utf-8"))
    ]
    assert len(shown) >= 5
    assert [(page, source) for page, source in shown if not (page.parent / source).exists()] == []


def test_no_page_shows_markup_that_was_not_rendered(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if "<article" in page.read_text(encoding="utf-8")]
    assert len(pages) >= 60
    found = {page.relative_to(site).as_posix(): faults(page.read_text(encoding="utf-8")) for page in pages}
    assert {page: some for page, some in found.items() if some and page != "404.html"} == {}


def test_the_laboratory_is_a_link_to_the_repository_from_its_old_addresses_too(site: Path) -> None:
    repository = "https://github.com/cde-rag/cde-rag/blob/main"
    assert f'url={repository}/lab/pages/recipes.md"' in (site / "experiments/recipes.html").read_text(encoding="utf-8")
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]
    led_to = {path for page in pages for path in re.findall(rf'"{repository}/(lab/[^"#]+)', page)}
    assert len(led_to) > 20
    assert [path for path in led_to if not (ROOT / path).exists()] == []


def test_links_lead_to_places_of_the_site(site: Path) -> None:
    assert broken_links(site) == []


@pytest.mark.parametrize(
    ("faulty", "kind"),
    [
        ("One text.** ([cde\n#2](https://a.b/2)) `from_corpus` warns", "a link"),  # as the FAQ was
        ("see\n#2; more", "titles"),
        ("Base\n├── One      first\n└── Two      second", "columns"),  # as the errors were
        ("Words\n* one\n* two", "a list"),
        ("Words\n| a | b |\n| --- | --- |\n| 1 | 2 |", "a table"),
        ('!!! "no kind"\n    inside', "an admonition"),
        ("**bold", "emphasis"),
        ("```\ncode", "code"),
        ("Words &lt;details&gt; more", "HTML"),
        ("Words\n::: cde_rag.errors", "a directive"),
        ("Words {#x", "attributes"),
        ("## " + "A sentence that became a heading. " * 4, "a heading"),
        ("<table><tr><td>1</td><td>2</td></tr><tr><td>1</td></tr></table>", "a table with rows"),
        ("<p>a <h2>b</h2></p>", "a heading inside"),
        ("Example:\n>>> add(1)\n2", "a quote in a quote"),
    ],
)
def test_faults_of_markdown_are_seen(faulty: str, kind: str) -> None:
    markdown = pytest.importorskip("markdown")
    extensions = ["admonition", "attr_list", "md_in_html", "tables", "pymdownx.superfences", "pymdownx.inlinehilite"]
    sound = "# Title\n\n- a list\n\n| a | b |\n| --- | --- |\n| `1 | 2` | **3** |\n\n!!! note\n    [a](#b) C# 2 * 3\n\n"
    assert faults(f"<article>{markdown.markdown(sound, extensions=extensions)}</article>") == []
    found = faults(f"<article>{markdown.markdown(sound + faulty, extensions=extensions)}</article>")
    assert any(kind in fault for fault in found), found


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = [page.read_text(encoding="utf-8") for page in site.rglob("*.html")]
    fetching = re.compile(r'<(?:script|img|link rel="stylesheet")[^>]*"(https?:[^"]+)"')
    assert [url for page in pages for url in fetching.findall(page)] == []


def test_code_in_tables_breaks_between_its_words_and_nowhere_else() -> None:
    hook = hook_module("site")
    cell, outside = "<td><code>{}</code></td>", "<p><code>usage.inputs_at_limit</code></p>"
    page = outside + cell.format("usage.inputs_at_limit") + cell.format("open(&quot;notes&quot;)")
    expected = (
        outside + cell.format("usage.<wbr>inputs_<wbr>at_<wbr>limit") + cell.format("open(<wbr>&quot;notes&quot;)")
    )
    assert hook.on_page_content(page, None, None, None) == expected
