"""What the site takes from elsewhere: help of the commands, notebooks, decisions, and pages from outside docs/.

A link to a file of the repository becomes one to its page; one to a file that has no page is an error of the build. The
laboratory has no pages here: links to its files become links to the repository. Old addresses lead to the new ones, and
the search ranks pages for users before the project's own.
"""

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))  # mkdocs takes it away again after this import

import commands  # noqa: E402
import notebooks  # noqa: E402
import redirects  # noqa: E402
import tables  # noqa: E402

# files of the repository that have a page, and the page
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "NOTICE": "notice.md",
    "examples/README.md": "notebooks/index.md",
    **{f"examples/{name}.py": f"notebooks/{name}.md" for name in notebooks.names()},
    "integrations/haystack-cde/README.md": "integrations/haystack.md",
    "integrations/langchain-cde/README.md": "integrations/langchain.md",
    "integrations/llama-index-embeddings-cde/README.md": "integrations/llama-index-embedding.md",
    "integrations/llama-index-vector-stores-cde/README.md": "integrations/llama-index-vector-store.md",
    "docs/decisions": "decisions/index.md",
}
OURS = ("decisions/index.md",)  # with a text of its own
REPOSITORY = "https://github.com/cde-rag/cde-rag/blob/main"
LABORATORY = "lab/"
OLD_ADDRESSES = "experiments"  # folder of the site in which pages of the laboratory used to be
PAGES = {  # their text is that file
    page: origin for origin, page in ELSEWHERE.items() if page not in OURS and not origin.endswith(".py")
}
OF_THE_PROJECT = re.compile(r"decisions/|(changes|contributing|notice)\.md$")  # and not for users
BEHIND = {"boost": 1e-4}  # of a page in the search, in which a word in a title counts 1000 times as much as in the text
TABLE = re.compile(r"<!-- (table|gains): (\S+\.csv) -->")
MADE = {"table": tables.markdown, "gains": tables.gains}
CELL = re.compile(r"<t[dh][^>]*>.*?</t[dh]>", re.DOTALL)
CELL_CODE = re.compile(r"(?<=<code>)[^<]+(?=</code>)")
JOINT = re.compile(r"([._/(,=?])(?=[^\s._/(,=?])")
LINK = re.compile(r"(?<!!)\[([^\]\[]*)\]\(([^)\s]+)\)")
IMAGE = re.compile(r"(!\[[^\]]*\]\()docs/")  # of the README, whose page is the first one of docs/


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put decisions and notebooks, whose number grows, into the navigation."""
    decisions = [f"decisions/{path.name}" for path in decision_pages()]
    pages = {
        "Decisions": ["decisions/index.md", *decisions],
        "Notebooks": ["notebooks/index.md", *(f"notebooks/{name}.md" for name in notebooks.names())],
    }
    config.nav = _filled(config.nav or [], pages)
    return config


def _filled(nav: list[Any], pages: dict[str, list[str]]) -> list[Any]:
    """Return a navigation with the pages of the named sections; sections without pages are left out."""
    filled: list[Any] = []
    for entry in nav:
        ((title, content),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
        below = _filled(pages.get(title, content), pages) if isinstance(content, list) else content
        if below:
            filled.append(below if title is None else {title: below})
    return filled


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    made = {"cli.md": commands.page(), "decisions/index.md": decisions_index()}
    made |= {page: (ROOT / origin).read_text(encoding="utf-8") for page, origin in PAGES.items()}
    made["notice.md"] = f"# Notice\n\n```text\n{made['notice.md']}```\n"
    for name in notebooks.names():
        text, images = notebooks.rendered(name)
        made[f"notebooks/{name}.md"] = text
        for image, content in images.items():
            files.append(File.generated(config, f"notebooks/{image}", content=content))
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Turn links to files of the repository into links to pages, and put in the tables that a page names.

    Pages that are not for users come after the others in the search.
    """
    if page.parent is None:
        page.meta["hide"] = ["navigation"]  # a section of one page has nothing to navigate
    here = page.file.src_uri
    if OF_THE_PROJECT.match(here):
        page.meta["search"] = BEHIND
    origin = PAGES.get(here, f"docs/{here}".replace("docs/notebooks/", "examples/"))
    text = IMAGE.sub(r"\1", linked(markdown, here, posixpath.dirname(origin)))
    return TABLE.sub(lambda found: MADE[found[1]](ROOT / posixpath.dirname(origin) / found[2]), text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Let code in cells of tables break between its words, so that tables fit a phone."""
    return CELL.sub(lambda cell: CELL_CODE.sub(lambda code: breakable(code[0]), cell[0]), html)


def on_post_build(config: MkDocsConfig) -> None:
    """Put a page at each old address, those of the laboratory's pages among them."""
    laboratory = {
        f"{OLD_ADDRESSES}/{page.stem}.html": f"{REPOSITORY}/{page.relative_to(ROOT).as_posix()}"
        for page in (ROOT / LABORATORY / "pages").glob("*.md")
    }
    redirects.write(Path(config.site_dir), redirects.redirects() | laboratory)


def breakable(code: str) -> str:
    """Mark places after punctuation at which a line may break: names stay in one piece as far as they fit."""
    return JOINT.sub(r"\1<wbr>", code)


def linked(text: str, here: str, folder: str) -> str:
    """Text of a folder of the repository, with links that hold on a page.

    Args:
        text: Markdown.
        here: The page, as mkdocs calls it.
        folder: Where the text's links begin.
    """

    def moved(found: re.Match[str]) -> str:
        words, link = found.groups()
        path, hash_, anchor = link.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found.group()
        target = posixpath.normpath(posixpath.join(folder, path))
        if target.startswith(LABORATORY):
            return f"[{words}]({REPOSITORY}/{target}{hash_}{anchor})"
        place = ELSEWHERE.get(target, target.removeprefix("docs/"))
        return f"[{words}]({posixpath.relpath(place, posixpath.dirname(here) or '.')}{hash_}{anchor})"

    return LINK.sub(moved, text)


def decision_pages() -> list[Path]:
    """Pages of decisions, in the order of their names."""
    return sorted((ROOT / "docs/decisions").glob("*.md"))


def decisions_index() -> str:
    """A list of the pages, and how they are to be read."""
    lines = ["# Decisions", "", "What a reader of the code would question: *decision, because, instead of*.", ""]
    for path in decision_pages():
        title = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
        lines.append(f"* [{title}]({path.name})")
    return "\n".join(lines) + "\n"
