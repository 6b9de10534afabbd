"""Faults of a page that was made from Markdown: markup that a reader sees as text, and broken structure."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
HIDDEN = ("code", "pre", "script", "style", "svg")  # what is shown as it is written, or not at all
BLOCKS = (*HEADINGS, "p", "li", "td", "th", "dt", "dd", "summary")
LONGEST_HEADING = 90  # characters
LEFT = {
    "emphasis": r"\*\*|(?<!\w)__\w",
    "a link": r"\]\(|\]\[",
    "a table": r"\|\s?:?-{3}|^\|",
    "a heading": r"^#",
    "code": r"`",
    "an admonition": r"^(!!!|\?\?\?)",
    "a directive": r"^:::",
    "HTML": r"</?\w+(\s[^>]*)?/?>",
    "a list": r"^[-*+] \S",
    "columns": r"[├└│]|\S {3,}\S",
    "attributes": r"\{[:#.]",
}


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.titles = 0
        self._inside = self._hidden = self._permalink = self._quotes = 0
        self._open: list[tuple[str, list[str]]] = []  # blocks with their text
        self._rows: list[list[int]] = []  # cells of each row, of the tables that are open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.update(value for key, value in attrs if key in ("id", "name") and value)
        self._inside += tag == "article"
        if not self._inside:
            return
        if tag == "a" and given.get("class") == "headerlink":
            self._permalink += 1
        self.links += [value for key, value in attrs if key in ("href", "src") and value]
        if tag in HIDDEN:
            self._hidden += 1
            self._text("x")
        self._quotes += tag == "blockquote"
        if self._quotes == 2:  # `>>> ` outside a section named Examples
            self.faults.append("a quote in a quote")
        if tag == "table":
            self._rows.append([])
        elif tag == "tr" and self._rows:
            self._rows[-1].append(0)
        elif tag in ("td", "th") and self._rows and self._rows[-1]:
            self._rows[-1][-1] += int(given.get("colspan") or 1)
        if tag in HEADINGS and any(block in ("p", *HEADINGS) for block, _ in self._open):
            self.faults.append(f"a heading inside a paragraph or heading: {self.get_starttag_text()}")
        if tag in BLOCKS:
            self._open.append((tag, []))
        self.titles += tag == "h1"

    def handle_endtag(self, tag: str) -> None:
        self._inside -= tag == "article"
        self._quotes -= self._inside and tag == "blockquote"
        if tag in HIDDEN:
            self._hidden = max(self._hidden - 1, 0)
        if tag == "a":
            self._permalink = 0
        if tag == "table" and self._rows and len(set(rows := self._rows.pop())) > 1:
            self.faults.append(f"a table with rows of {sorted(set(rows))} cells")
        if tag in BLOCKS and tag in (block for block, _ in self._open):
            while self._open:
                block, parts = self._open.pop()
                self._check(block, "".join(parts))
                if block == tag:
                    break

    def handle_data(self, data: str) -> None:
        if self._inside and not self._hidden and not self._permalink:
            self._text(data)

    def _text(self, data: str) -> None:
        if self._open and not (self._hidden and data != "x"):
            self._open[-1][1].append(data)

    def _check(self, block: str, text: str) -> None:
        lines = "\n".join(line.strip() for line in text.splitlines())
        for kind, pattern in LEFT.items():
            if kind == "columns" and block in HEADINGS:  # those of the reference have blanks after an icon
                continue
            if found := re.search(pattern, lines, re.MULTILINE):
                self.faults.append(f"{kind} as text: {lines[max(found.start() - 30, 0) :][:80]!r}")
        if block in HEADINGS and not 0 < len(lines.strip()) <= LONGEST_HEADING:
            self.faults.append(f"a heading of {len(lines)} characters: {lines[:80]!r}")


def faults(content: str) -> list[str]:
    """Return what is wrong with the article of a page, links apart."""
    page = _read(content)
    return page.faults + ([] if page.titles == 1 else [f"{page.titles} titles"])


def broken_links(site: Path) -> list[tuple[str, str]]:
    """Return the page and the target of each link that leads to no file of the site, or to no place in one."""
    pages = {path.resolve(): _read(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    broken = list[tuple[str, str]]()
    for path, page in pages.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            name, _, place = link.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            inside = target.is_file() and target.is_relative_to(site.resolve())
            if not inside or (place and target in pages and unquote(place) not in pages[target].ids):
                broken.append((path.relative_to(site.resolve()).as_posix(), link))
    return broken


def _read(content: str) -> _Page:
    page = _Page()
    page.feed(content)
    page.close()
    return page
