"""Pairs from the HTML that packages ship: sections under their headings, and none of what is no prose for a reader."""

import gzip
import json
import subprocess
import sys
from collections import Counter

import pytest

from cde_rag.errors import CorpusError
from cde_rag_training.data.pairs import Pair
from lab.experiments import documentation_pairs as documentation
from lab.experiments.documentation_pages import page_of
from lab.experiments.documentation_pairs import (
    CHARACTERS,
    HELD_OUT,
    PACKAGES,
    SOURCE,
    cut,
    documentation_pairs,
    names_something,
    pages_of,
    readable,
)

PACKAGE, OTHER = "python-flask-doc", "sqlite3-doc"
BODY = (
    "{0} is what this part of the guide is about, and you will need it when your server has more than one worker. "
    "If it is not there, the {0} of the system will be used."
)


def prose(subject):
    return BODY.format(subject)


def html(title, *sections, before="", lead="", after=""):
    parts = "".join(f"<h2>{heading}</h2>\n<p>{text}</p>" for heading, text in sections)
    body = f"{before}<h1>{title}</h1><p>{lead}</p>{parts}{after}"
    return f"<html><head><title>{title}</title></head><body>{body}</body></html>"


def write(folder, name, text, package=PACKAGE):
    path = folder / package / "usr/share/doc" / package / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def two(title, *names, **rest):
    return html(
        title, *((name, prose(f"{title} {name}".lower())) for name in names or ("Using it", "Tuning it")), **rest
    )


def queries(folder):
    return [pair.query for pair in documentation_pairs(folder)]


def test_a_section_becomes_a_pair_of_its_heading_and_its_text_without_navigation(tmp_path):
    navigation = "<div class='sphinxsidebar'><div>Previous page</div><ul><li>Next page</ul></div><nav>Home</nav>"
    code = "<pre>import   flask\nflask.run()</pre>"
    page = html(
        "1. Running <b>a</b> server",
        ('2.1. Sockets<a class="headerlink" href="#s">¶</a>', prose("a &lt;socket&gt;") + code),
        ("3 Workers", prose("a <em>worker</em>") + "<script>if (a < b) run()</script>"),
        before=navigation + "<p>Before the title</p>",
        lead=prose("a server"),
        after=navigation + "<footer>Made by a program</footer>",
    )
    write(tmp_path, "run.html", page)
    found = list(documentation_pairs(tmp_path))
    assert [(pair.query, pair.document) for pair in found] == [
        ("Running a server", prose("a server")),
        ("Running a server: Sockets", prose("a <socket>") + " import flask flask.run()"),
        ("Running a server: Workers", prose("a worker")),
    ]
    assert found[0] == Pair("Running a server", prose("a server"), SOURCE, PACKAGE, parent="Running a server")


def test_titles_of_two_pages_and_headings_that_many_have_are_dropped(tmp_path):
    write(tmp_path, "first/page.html", two("The same title", "Left", "Right"))
    write(tmp_path, "second/page.html", two("The Same Title", "Up", "Down"))
    for number in range(documentation.MOST_PAGES + 1):
        write(
            tmp_path,
            f"{number}.html",
            two(f"Page of {'abcd'[number]}", "See also", "One thing", f"Thing {number}", "Two"),
        )
    write(tmp_path, "page.html", two("Page of others", "Anything", "Another thing"))
    assert queries(tmp_path) == ["Page of others: Anything", "Page of others: Another thing"]


def test_of_equal_documents_or_queries_the_first_is_kept_and_a_page_needs_two(tmp_path):
    first = html("Sockets", ("Opening", prose("a socket")), ("Closing", prose("an end")))
    write(tmp_path, "a.html", first)
    write(tmp_path, "b.html", html("Other", ("Opening them", prose("a SOCKET")), ("Closing them", prose("the last"))))
    again = html("Sockets", ("Opening", prose("another")), ("Waiting", prose("x")), ("Hearing", prose("y")))
    write(tmp_path, "d.html", again, package=OTHER)
    assert queries(tmp_path) == ["Sockets: Opening", "Sockets: Closing", "Sockets: Waiting", "Sockets: Hearing"]


def test_a_large_package_gives_whole_pages_and_always_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(documentation, "MOST_SECTIONS", 8)
    for number in range(9):
        write(
            tmp_path,
            f"{number}.html",
            two(f"Page {number}", *(f"{name} in {number}" for name in ("Here", "There", "Near"))),
        )
    pairs = list(documentation_pairs(tmp_path))
    assert list(Counter(pair.parent for pair in pairs).values()) == [3, 3]
    assert pairs == list(documentation_pairs(tmp_path))
    chosen = {pair.parent for pair in pairs}
    unchosen = next(number for number in range(9) if f"Page {number}" not in chosen)
    write(tmp_path, f"{unchosen}.html", "")
    assert list(documentation_pairs(tmp_path)) == pairs  # what is chosen depends on no other page


def test_packed_pages_are_read_and_translations_references_and_notices_are_not(tmp_path):
    write(tmp_path, "guide.html.gz", two("Guide"))
    write(tmp_path, "latin.html", two("Latin"))
    (path,) = tmp_path.rglob("latin.html")
    path.write_bytes(path.read_text().replace("Using it", "Using caf\u00e9s").encode("cp1252"))
    for name in (
        "de/guide.html",
        "index.html.fr",
        "guide.ja.html",
        "genindex.html",
        "classServer.html",
        "server_8h.html",
        "functions_a.html",
        "struct.Server.html",
        "apidocs/server.html",
        "changelog.html",
        "whatsnew/2.html",
        "license.html",
        "release-notes/3.html",
    ):
        write(tmp_path, name, two(name))
    write(tmp_path, "greek.html", html("Greek", *((f"Part {part}", prose(part) + "Ελληνικά " * 9) for part in "ab")))
    write(tmp_path, "java.html", "<!-- Generated by javadoc -->" + two("Server"))
    write(tmp_path, "server1.html", two("server(1)", "Synopsis", "What it does", "How it does it"))
    assert {pair.parent for pair in documentation_pairs(tmp_path)} == {"Guide", "Latin"}
    assert "Latin: Using cafés" in queries(tmp_path)


def test_packages_that_are_not_on_the_list_are_passed_over_but_not_if_there_are_no_others(tmp_path):
    write(tmp_path, "a.html", two("Sockets"), package="ansible-doc")
    with pytest.raises(CorpusError, match=r"Expected folders named like packages .* found none"):
        list(documentation_pairs(tmp_path))
    write(tmp_path, "a.html", two("Workers"))
    assert {pair.domain for pair in documentation_pairs(tmp_path)} == {PACKAGE}


@pytest.mark.parametrize(
    ("page", "title", "headings"),
    [
        ("<title>Pools - Manual</title><h1>Manual</h1>w<h2>Pools</h2>x<h3>Sizes</h3>y", "Pools", ["", "Sizes"]),
        ("<title>Manual -- Pools</title><h1>Pools</h1>x<h2>Sizes</h2>y", "Pools", ["", "Sizes"]),
        ("<title>5.1. Pools</title><h2>5.1. Pools</h2>x<h3>Sizes</h3>y", "Pools", ["", "Sizes"]),
        (
            "<title>Pools | Manual</title>w<h2>Sizes</h2>x<h3>Note</h3>y<h5>Small</h5>z<h2>Use</h2>",
            "Pools",
            ["", "Sizes", "Use"],
        ),
        ("<h1>Pools</h1><h1>Pools</h1>x<h2>Part of them</h2>y", "Pools", ["", "Part of them"]),
    ],
)
def test_the_title_is_a_heading_where_one_is_the_pages_own(page, title, headings):
    found = page_of("pools.html", page)
    assert found is not None
    assert (found.title, [section.heading for section in found.sections]) == (title, headings)
    assert found.sections[0].text in {"", "x"}
    assert found.sections[1].text in {"y", "x Note: y Small z"}


def test_headings_that_are_code_are_told_apart():
    page = page_of(
        "a.html", "<h1>Pools</h1><h2><code>size</code><a class='headerlink'>¶</a></h2>x<h2>The <tt>size</tt></h2>y"
    )
    assert page is not None
    assert [section.code for section in page.sections] == [False, True, False]


@pytest.mark.parametrize(
    ("heading", "cleaned"),
    [
        ("3.2.1. Sizes", "Sizes"),
        ("Chapter 4: Sizes", "Sizes"),
        ("A.2 Sizes", "Sizes"),
        ("7 Sizes¶", "Sizes"),
        ("10 minutes of it", "10 minutes of it"),
        ("Part of it", "Part of it"),
    ],
)
def test_numbers_of_sections_are_no_part_of_a_heading(heading, cleaned):
    page = page_of("a.html", f"<h1>Pools</h1><h2>{heading}</h2>x")
    assert page is not None
    assert page.sections[1].heading == cleaned


@pytest.mark.parametrize("heading", ["How to open a socket", "Sockets", "TCP", "Copy-on-write", "What is it?"])
def test_headings_that_name_something(heading):
    assert names_something(heading)


@pytest.mark.parametrize(
    "heading", ["open(path, mode)", "/etc/passwd", "std::vector", "--verbose", "max_size", "1.2", "a b", "word " * 13]
)
def test_headings_that_are_code_or_no_heading(heading):
    assert not names_something(heading)


def test_prose_is_told_from_tables_code_and_fragments():
    assert readable(prose("a socket"))
    assert not readable(prose("a socket")[:60])
    assert not readable(prose("a socket") * 20)
    assert not readable("Socket yes no maybe. Worker none 3 4 5. " * 10)
    assert not readable("x = {1: [2, 3], 4: (5 - 6)}; " * 10)


def test_a_long_text_ends_with_a_word():
    text = "word " * CHARACTERS
    assert cut(text) == text[:CHARACTERS].rstrip()
    assert cut("x" + text).endswith(" word")
    assert len(cut("x" + text)) <= CHARACTERS
    assert cut(prose("a socket")) == prose("a socket")


def test_pages_come_in_the_order_of_their_paths(tmp_path):
    for name in ("b.html", "a.htm", "c/a.html"):
        write(tmp_path, name, two(name[0] * 3))
    assert [page.title for page in pages_of(tmp_path / PACKAGE)] == ["aaa", "bbb", "ccc"]


@pytest.mark.parametrize(("name", "content"), [("a.html.gz", b"no gzip"), ("a.html", b"<h1>A</h1><![ if>")])
def test_a_file_that_is_no_page_is_named(tmp_path, name, content):
    write(tmp_path, "b.html", two("Sockets"))
    (tmp_path / PACKAGE / "usr/share/doc" / PACKAGE / name).write_bytes(content)
    with pytest.raises(CorpusError, match=r"a\.html.*expected a page in HTML"):
        list(documentation_pairs(tmp_path))


def test_a_folder_that_is_not_there_is_no_folder_of_packages(tmp_path):
    with pytest.raises(CorpusError, match="found none"):
        list(documentation_pairs(tmp_path / "nothing"))


def test_the_command_writes_what_is_held_out_apart(tmp_path):
    write(tmp_path / "docs", "a.html", two("Sockets"))
    write(tmp_path / "docs", "a.html", two("Pools"), package="nim-doc")
    outputs = [tmp_path / "pairs.jsonl", tmp_path / "held-out.jsonl"]
    command = [sys.executable, "-m", "lab.experiments.documentation_pairs", tmp_path / "docs", *outputs]
    subprocess.run([str(part) for part in command], check=True)
    trained, held_out = ([json.loads(line) for line in path.read_text().splitlines()] for path in outputs)
    assert [row["query"] for row in trained] == ["Sockets: Using it", "Sockets: Tuning it"]
    assert [(row["query"], row["domain"]) for row in held_out] == [
        ("Pools: Using it", "nim-doc"),
        ("Pools: Tuning it", "nim-doc"),
    ]
    assert set(trained[0]) == {"query", "document", "source", "domain", "parent"}
    assert PACKAGES.keys() > HELD_OUT
