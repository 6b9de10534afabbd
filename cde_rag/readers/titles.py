"""Titles that pages give themselves: in front matter, as a first heading, in metadata; as a last resort their names."""

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Final, NamedTuple

LONGEST: Final = 200  # characters of a title or heading; it is kept with every passage below it

_LINE_END: Final = r"(?:\r\n?|\n)"
_YAML: Final = re.compile(
    rf"\A\s*---[ \t]*{_LINE_END}(?![ \t]*{_LINE_END})((?:.*?{_LINE_END})??)(?:---|\.\.\.)[ \t]*(?:{_LINE_END}|\Z)",
    re.DOTALL,
)
_TOML: Final = re.compile(
    rf"\A\s*\+\+\+[ \t]*{_LINE_END}((?:.*?{_LINE_END})??)\+\+\+[ \t]*(?:{_LINE_END}|\Z)", re.DOTALL
)
_KEY: Final = r"""(?:"[^"]*"[ \t]*|'[^']*'[ \t]*|[^\s#"'\[\]{}:-][^:]*)"""
_YAML_LINE: Final = re.compile(rf"{_KEY}:(?:[ \t].*)?|[ \t].*|#.*|-(?:[ \t].*)?|[\]}}].*|")  # of a mapping
_TOML_LINE: Final = re.compile(r"""[\w.\-"' ]+?=.*|\[.*|#.*|[ \t].*|[\]}].*|""")
_YAML_TITLE: Final = re.compile(r"""(["']?)title\1[ \t]*:[ \t]*(.*)""", re.IGNORECASE)
_TOML_TITLE: Final = re.compile(r"""(?:title|"title")\s*=\s*(?:"((?:[^"\\\r\n]|\\.)+)"|'([^'\r\n]+)')""", re.IGNORECASE)
_QUOTED: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'""", re.DOTALL)
_UNDERLINE: Final = re.compile(r"([!-/:-@\[-`{-~])\1*[ \t]*")
_NO_TITLE: Final = re.compile(r"\.\. |[+|]|:[^`:]+:(?:\s|$)")  # comments and directives, tables, fields
_SHORTEST: Final = 4  # characters of a line under a longer title (docutils)
_ROLE: Final = re.compile(r"(?<!\S):[\w:.+-]+:(?=`)")
_TARGET: Final = re.compile(r"`([^`<]*?)\s*(?:<[^`>]*>)?`_{0,2}")
_MARKS: Final = re.compile(r"``|`|(?<!\S)\*{1,2}(?=\S)|(?<=\S)\*{1,2}(?!\w)|\\(?=[^\w\s])|\\ ")
_ASCIIDOC: Final = re.compile(r"^=[ \t]+(\S.*?)[ \t]*\r?$", re.MULTILINE)
_ASCIIDOC_SECTION: Final = re.compile(r"^={2,6}[ \t]+\S", re.MULTILINE)
_ORG: Final = re.compile(r"^#\+title:[ \t]*(\S.*?)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)
_MDX: Final = re.compile(
    r"""^export[ ]+const[ ]+(?:meta|metadata|frontMatter)\b[^=\n]{0,100}=[ ]*\{[^{}]{0,2000}?\btitle["']?:\s*
    (["'`])((?:[^"'`\\\n]|\\.|(?!\1)["'`]){1,500})\1""",
    re.MULTILINE | re.VERBOSE,
)
_FILE_NAME: Final = re.compile(r"\.(?:docx?|pdf|pptx?|indd|tex|dvi|ps|qxd|xlsx?)$", re.IGNORECASE)
_NAMELESS: Final = re.compile(r"_?index|readme|\+page|default|_category_", re.IGNORECASE)
_NUMBERED: Final = re.compile(r"^\d{1,3}[-_. ]+(?=\D)")


class FrontMatter(NamedTuple):
    """A page's data about itself: the `title` that it has there or "", and where the page itself begins."""

    title: str
    end: int


def front_matter(text: str) -> FrontMatter:
    r"""Return the front matter of a page: YAML between lines of `---`, TOML between `+++`, or JSON with a title.

    Two rules around a paragraph are no front matter: each line has to be one of a mapping. Only the title is read.

    Examples:
        >>> front_matter("---\ntitle: 'Host on Netlify'\n---\nUse these steps.")
        FrontMatter(title='Host on Netlify', end=33)
    """
    for block, line, title in ((_YAML, _YAML_LINE, _yaml_title), (_TOML, _TOML_LINE, _toml_title)):
        if (found := block.match(text)) is not None:
            lines = re.split(_LINE_END, found[1])
            if all(map(line.fullmatch, lines)) and not lines[0].startswith((" ", "\t")):
                return FrontMatter(_short(title(lines)), found.end())
    return _json(text)


class RestructuredTitle(NamedTuple):
    """A title of reStructuredText.

    Attributes:
        text: Without markup.
        style: The underline's character, twice if there is an overline; each style is a level.
        first: Number of its first line, from 0, an overline included.
        last: Number of the underline.
    """

    text: str
    style: str
    first: int
    last: int


def restructured_text_titles(text: str) -> Iterator[RestructuredTitle]:
    """Yield the titles of reStructuredText.

    Source: reStructuredText Markup Specification, "Sections".
    """
    lines = text.splitlines()
    for number, line in enumerate(lines[1:], 1):
        title = lines[number - 1][: 5 * LONGEST]
        if not _UNDERLINE.fullmatch(line) or not title.strip() or _UNDERLINE.fullmatch(title):
            continue
        above = lines[number - 2] if number > 1 else ""
        over = above.rstrip() == line.rstrip()
        if not over and (above.strip() or title[0].isspace()):
            continue
        if len(line.rstrip()) >= min(len(title.strip()), _SHORTEST) and not _NO_TITLE.match(title):
            words = _short(_MARKS.sub("", _TARGET.sub(r"\1", _ROLE.sub("", title.replace("``", "`")))))
            if words:
                yield RestructuredTitle(words, line[0] * (1 + over), number - 1 - over, number)


def restructured_text_title(text: str) -> str:
    """Return the first title of reStructuredText, without markup; "" if there is none."""
    return next((title.text for title in restructured_text_titles(text)), "")


def asciidoc_title(text: str) -> str:
    """Return the title of an AsciiDoc document, of level 0; "" if it has none."""
    section = _ASCIIDOC_SECTION.search(text)
    found = _ASCIIDOC.search(text, 0, section.start() if section else len(text))
    return _short(found[1]) if found else ""


def org_title(text: str) -> str:
    """Return the title of an Org file, of its line `#+TITLE:`; "" if it has none."""
    found = _ORG.search(text)
    return _short(found[1]) if found else ""


def mdx_title(text: str) -> str:
    """Return the title that an MDX page exports, in `meta`, `metadata` or `frontMatter`; "" if it exports none."""
    found = _MDX.search(text)
    return _short(_unescaped(found[2].replace("\\'", "'"))) if found else ""


def first_line_title(text: str) -> str:
    """Return the first line of a document without headings as its title; "" if it looks like a sentence or a number."""
    line = next((words for line in text.splitlines() if (words := line.strip())), "")
    if len(line) > LONGEST // 2 or not re.search(r"[^\W\d_]{3}", line) or line.endswith((".", ",", ";", ":")):
        return ""
    return _short(line.lstrip("#").strip())


def stated_title(title: str) -> str:
    """Return a title in a document's metadata; "" for the names that programs leave there."""
    title = re.sub(r"^Microsoft (?:Word|PowerPoint) - ", "", title.strip())
    if re.fullmatch(
        r"[(]?(?:anonymous|untitled|document|presentation|slide|print|title|none)?[\s\d]*[)]?", title, re.IGNORECASE
    ):
        return ""
    return "" if _FILE_NAME.search(title) else _short(title)


def named_title(source: str) -> str:
    """Return a file's name in words; that of its folder for names such as README and index.

    Args:
        source: The file's name, with those of folders above it if they are known.

    Examples:
        >>> named_title("docs/02-getting_started.md"), named_title("docs/install/index.md")
        ('getting started', 'install')
    """
    parts = [part for part in re.split(r"[/\\]", source) if part]
    name = re.sub(r"(?<=.)\.\w{1,10}$", "", parts[-1])
    if _NAMELESS.fullmatch(name) and len(parts) > 1 and parts[-2].strip("._- "):
        name = parts[-2]
    words = " ".join(_NUMBERED.sub("", name).replace("-", " ").replace("_", " ").split())
    return _short(words or name) or name


def _yaml_title(lines: list[str]) -> str:
    for number, line in enumerate(lines):
        if (found := _YAML_TITLE.fullmatch(line)) is not None:
            more = [rest.strip() for rest in takewhile(lambda rest: not rest or rest[0] in " \t", lines[number + 1 :])]
            return _scalar(found[2].strip(), more)
    return ""


def _scalar(first: str, more: list[str]) -> str:
    """Return a string of YAML from its first line and the indented ones below; "" for another value."""
    if first.startswith((">", "|")):
        return " ".join(more)
    value = " ".join([first, *more]).strip()
    if (quoted := _QUOTED.match(value)) is not None:
        return _unescaped(quoted[1]) if quoted[1] is not None else quoted[2].replace("''", "'")
    plain = re.split(r"(?:\A|\s)#", value)[0].strip()
    return (
        ""
        if plain.lower() in ("null", "~") or plain.startswith(("[", "{", "&", "*", "!", "%", "@", '"', "'"))
        else plain
    )


def _toml_title(lines: list[str]) -> str:
    for line in takewhile(lambda line: not line.startswith("["), lines):
        if (found := _TOML_TITLE.match(line)) is not None:
            return _unescaped(found[1]) if found[1] is not None else found[2]
    return ""


def _json(text: str) -> FrontMatter:
    begin = re.match(r"\s*(?=\{)", text)
    if begin is not None:
        try:
            value, end = json.JSONDecoder().raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            return FrontMatter("", 0)
        after = re.compile(rf"[ \t]*(?:{_LINE_END}|\Z)").match(text, end)
        if after is not None and isinstance(value.get("title"), str):
            return FrontMatter(_short(value["title"]), after.end())
    return FrontMatter("", 0)


def _unescaped(value: str) -> str:
    """Return a string in double quotes as JSON reads it, whose escapes YAML and TOML share, but for rare ones."""
    try:
        return json.loads(f'"{value}"')
    except ValueError:
        return value


def _short(title: str) -> str:
    """Return a title on one line; "" for one that holds a lone surrogate, which no store takes."""
    line = " ".join(title.split())
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return ""
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
