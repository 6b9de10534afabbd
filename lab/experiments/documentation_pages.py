"""A page of documentation in HTML as its title and the sections under its headings, without navigation."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Final

FOREIGN: Final = 0.05  # of a page's characters outside ASCII, at most
NUMBER: Final = re.compile(
    r"((?i:chapter|section|part|appendix)\s+(\d+(\.\d+)*|[A-Z]|[IVX]+)\b[\s.:—–-]*|([A-Z]\.)?\d+(\.\d+)*([.):]+\s+|\s+(?=[A-Z]))"
    r"|[A-Z]?\d*(\.\d+)+\.?\s+|[A-Z]\.\s+)+"
)
HEADINGS: Final = frozenset("h1 h2 h3 h4".split())
NOTES: Final = frozenset("caution danger important note notes tip warning".split())  # headings that are none
SKIPPED: Final = frozenset("script style nav header footer head form dl.api button select svg".split())
BOXES: Final = frozenset("aside div dl ol p section span table td ul".split())
SKIPPED_BOXES: Final = frozenset(  # classes, ids and roles of navigation, signatures, a manual's pages
    "anchor boost-toc bottomnav breadcrumb breadcrumbs c copyright copyright-footer cpp docblock-short docs-actions "
    "docs-license docs-sidebar docs-sidebar-toc docs-updated footer footnote global-nav header js linenos memitem "
    "memproto menu menu-bar menu-title nav nav-path nav_prev_next navbar navfooter navheader navigation out-of-band "
    "prevnext py refsect1 related search sidebar sphinxsidebar spirit-nav sub-variant table-of-contents titlepage-toc "
    "toc toctree-wrapper top-nav topnav ttc".split()
)
SKIPPED_LINKS: Final = frozenset("anchor docs-footer-actions headerlink mark test-arrow".split())
INLINE: Final = frozenset(
    "a abbr acronym b big cite code em font i kbd q s small span strong sub sup tt u var wbr".split()
)
CODE: Final = frozenset("code tt kbd var".split())


@dataclass(slots=True)
class PageSection:
    """Section of a page.

    Its heading (empty for text before the first heading), its text, and a flag for headings that are code only.
    """

    heading: str
    text: str
    code: bool = False


@dataclass(slots=True)
class DocumentationPage:
    """A page's path in its package, its title, and its sections in their order."""

    path: str
    title: str
    sections: list[PageSection]


@dataclass(slots=True)
class _Part:
    """Pieces of a heading, those of them that are no code, and pieces of the text under it."""

    level: str
    heading: list[str] = field(default_factory=list)
    prose: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    """Splits a page at its headings, without navigation; `parts[0]` stands before the first."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.parts = [_Part("")]
        self._skipped, self._depth = "", 0
        self._inside = ""  # title or h1 to h4
        self._code = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "body":
            self._skipped, self._inside = "", ""
        elif tag == "title" and not self.title:
            self._inside = tag
        elif self._skipped:
            self._depth += tag == self._skipped
        elif tag in SKIPPED or _skipped_box(tag, attrs):
            self._skipped, self._depth = tag, 1
        elif tag in HEADINGS:
            self._inside, self._code = tag, 0
            self.parts.append(_Part(tag))
        elif tag in CODE:
            self._code += 1
        elif tag not in INLINE:
            self.handle_data(" ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._inside:
            self._inside = ""
        elif self._skipped:
            self._depth -= tag == self._skipped
            self._skipped = self._skipped if self._depth else ""
        elif tag in CODE:
            self._code = max(self._code - 1, 0)
        elif tag not in INLINE:
            self.handle_data(" ")

    def handle_data(self, data: str) -> None:
        part = self.parts[-1]
        if self._inside == "title":
            self.title += data
        elif self._skipped:
            return
        elif self._inside:
            part.heading.append(data)
            if not self._code:
                part.prose.append(data)
        else:
            part.text.append(data)


def _skipped_box(tag: str, attributes: Iterable[tuple[str, str | None]]) -> bool:
    names = {name for key, value in attributes if key in {"class", "id", "role"} and value for name in value.split()}
    if tag == "a":
        return bool(names & SKIPPED_LINKS)
    return tag in BOXES and (bool(names & SKIPPED_BOXES) or {"contents", "topic"} <= names)


def page_of(path: str, html: str) -> DocumentationPage | None:
    """Parse an HTML file into a page; None if it has no heading, is not English, a manual page, or made by javadoc.

    The title is what the file's own title begins with. Where no heading repeats it and the page has but one heading of
    the highest level, it is that one.
    """
    foreign = len(html.encode(errors="replace")) - len(html)
    if foreign > FOREIGN * len(html) or "Generated by javadoc" in html[:2000]:
        return None
    reader = _Reader()
    reader.feed(html)
    reader.close()
    parts = [part for part in reader.parts if _heading(part)]
    headings = [_heading(part) for part in parts]
    if not parts or any(heading.casefold() == "synopsis" for heading in headings):
        return None
    title = _cleaned(re.split(r"\s[—–|-]+\s", _spaced(reader.title))[0])
    first = next((place for place, heading in enumerate(headings) if heading.casefold() == title.casefold()), -1)
    level = min(part.level for part in parts)
    highest = [place for place, part in enumerate(parts) if part.level == level]
    if first < 0 and len({headings[place] for place in highest}) == 1:
        first = highest[0]
    if first >= 0:
        title = headings[first]
    sections = [PageSection("", "")]
    for part, heading in zip(parts[max(first, 0) :], headings[max(first, 0) :], strict=True):
        text = _spaced("".join(part.text))
        if heading == title:
            sections[-1].text = f"{sections[-1].text} {text}".strip()
        elif heading.casefold() in NOTES:
            sections[-1].text = f"{sections[-1].text} {heading}: {text}".strip()
        else:
            sections.append(PageSection(heading, text, code=not "".join(part.prose).strip(" \n¶#")))
    return DocumentationPage(path, title, sections) if title else None


def _heading(part: _Part) -> str:
    return _cleaned("".join(part.heading))


def _spaced(text: str) -> str:
    return " ".join(text.split())


def _cleaned(heading: str) -> str:
    heading = _spaced(heading).strip(" ¶#§🔗:.")
    return heading[match.end() :] if (match := NUMBER.match(heading)) else heading
