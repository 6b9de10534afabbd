"""Pairs from the documentation that Debian packages ship as HTML: title and heading → the section under the heading.

A package is a domain, a page a parent. Left out: packages whose documentation is not under a permissive licence or is
a reference of an interface only, and of the others such references, indexes, release notes, licences, translations.
"""

import argparse
import gzip
import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from cde_rag.errors import CorpusError
from cde_rag_training.data.pairs import Pair
from lab.experiments.bundled_pairs import write_pairs
from lab.experiments.documentation_pages import DocumentationPage, PageSection, page_of

SOURCE: Final = "documentation"
LICENCES: Final[Mapping[str, str]] = {  # of the documentation, by the packages' copyright files → packages
    "Apache-2.0": "ant-doc apache2-doc chezscheme-doc cinder-doc cython-doc erlang-doc heat-doc "
    "ironic-doc keystone-doc libmongoc-doc nova-doc octavia-doc openvswitch-doc "
    "python-requests-doc python-tornado-doc python-xarray-doc swift-doc tomcat10-docs",
    "Apache-2.0 with LLVM exception": "clang-15-doc llvm-15-doc",
    "BSD": "borgbackup-doc cmake-doc dpdk-doc ganeti-doc libtorrent-rasterbar-doc netcdf-doc "
    "numba-doc python-babel-doc python-dask-doc python-django-doc "
    "python-djangorestframework-doc python-flask-doc python-h5py-doc python-ipython-doc "
    "python-jinja2-doc python-notebook-doc python-pandas-doc python-rdflib-doc "
    "python-sympy-doc python-tables-doc python-werkzeug-doc rdkit-doc sphinx-doc "
    "swi-prolog-doc varnish-doc xonsh-doc",
    "Biopython": "python-biopython-doc",
    "BSL-1.0": "libboost1.81-doc",
    "CC-BY-3.0": "python-qutip-doc",
    "CC-BY-SA-4.0": "python-celery-doc",
    "ImageMagick": "imagemagick-6-doc",
    "MIT": "krb5-doc luma.oled-doc nim-doc nodejs-doc pipewire-doc python-attr-doc "
    "python-discord-doc python-pytest-doc python-sqlalchemy-doc renpy-doc scons-doc "
    "snakemake-doc twisted-doc wireplumber-doc",
    "MIT or Apache-2.0": "cargo-doc rust-doc",
    "NTP": "ntpsec-doc",
    "PostgreSQL": "postgresql-doc-15",
    "public domain": "docutils-doc sbcl-doc sqlite3-doc",
}
PACKAGES: Final[Mapping[str, str]] = {name: licence for licence, names in LICENCES.items() for name in names.split()}
HELD_OUT: Final = frozenset(  # sites that models are asked on: drawn by the hash of their names, before any training
    "borgbackup-doc ganeti-doc libtorrent-rasterbar-doc nim-doc nodejs-doc numba-doc postgresql-doc-15 "
    "python-djangorestframework-doc python-sympy-doc twisted-doc".split()
)
MOST_SECTIONS: Final = 700  # of a package
MOST_PAGES: Final = 3  # of a package that share a heading
CHARACTERS: Final = 1500  # of a document
WORDS: Final = range(25, 401)  # of a section
HEADING_WORDS: Final = range(1, 13)
LETTERS: Final = 0.6  # of a section's characters letters or spaces, at least
COMMON: Final = 0.2  # of a section's words common ones, at least
SENTENCES: Final = 2  # of a section, at least
SECTIONS: Final = 2  # of a page, at least

COMMON_WORDS: Final = frozenset(
    "a about all also an and any are as at be because been but by can could do does each even for from has have how if "
    "in into is it its just like make may more most must need no not of on one only or other our same should so some "
    "such than that the their them then there these they this those to two up use used using was we what when where "
    "which while who will with would you your".split()
)
LANGUAGES: Final = (
    "ar bg ca cs da de el eo es et fa fi fr gl he hr hu id it ja ko lt nb nl pl pt pt-br ro ru sk sl sr sv ta th tr uk "
    "vi zh zh-cn zh-tw"
).split()
FOLDERS: Final = frozenset(
    "CommandGuide _downloads _modules _sources _static admin_commands announce api-docs apidoc apidocs c3ref c_api "
    "changelog changes cppapi examples generated glossary javadoc licenses lua_api man manpages news refman "
    "release-notes releaselog releasenotes releases search servletapi user_commands whats-new whatsnew".split()
).union(LANGUAGES)
NAMES: Final = re.compile(
    r"(genindex|(py-)?modindex|search|classes|annotated|hierarchy|files|namespaces|deprecated|todo|bookindex|print|toc"
    r"|all|contents|sitemap|index-all|help-doc|glossary|biblio(graphy)?|authors?|credits|contributors|acknowledge?ments"
    r"|.*-announcement|legal(notice)?|licen[cs]e.*|copyright.*|copying|.*change(s|s?_?log).*|news|history|.*whats_?new.*|release.*"
    r"|(functions|globals|namespacemembers)(_.*)?|(class|struct|union|interface|namespace|group__|dir_)_?[A-Z_\d].*"
    r"|.*_8(h|c|cpp|hpp)(_.*)?|.*-(members|source)|.*\.rs"
    r"|(struct|fn|trait|macro|enum|constant|type|primitive|keyword|static|union|derive|attr)\..*"
    rf"|.*\.({'|'.join(LANGUAGES)})(\.[\w-]+)?)\.html?(\.\w\w)?(\.gz)?|.*\.html?\.({'|'.join(LANGUAGES)})(\..*)?"
)
RELEASES: Final = re.compile(
    r"release notes|released|change ?log|what.?s new|acknowledg|licen[cs]e|copyright|disclaimer|roadmap", re.IGNORECASE
)
CALL: Final = re.compile(r"\w\s?\(.*\)|[{}<>=;$\\@|]|::|^[-~./]|_")
PLAIN_WORD: Final = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{3,}s?")
SENTENCE_END: Final = re.compile(r"[.!?:]['\")]?(\s|$)")


def documentation_pairs(folder: Path) -> Iterator[Pair]:
    """Yield the pairs of all packages in `PACKAGES`, by name; of equal queries or documents the first only.

    Args:
        folder: Holds each unpacked package in a folder of its name. Other folders in it are skipped.

    Raises:
        CorpusError: No folder in it has the name of a package of `PACKAGES`, or a file cannot be read as a page.
    """
    packages = sorted(path for path in folder.glob("*") if path.is_dir() and path.name in PACKAGES)
    if not packages:
        raise CorpusError(
            f"Expected folders named like packages of PACKAGES ({next(iter(PACKAGES))}, …) in {folder}, found none. "
            "Unpack packages there with `dpkg-deb -x FILE.deb FOLDER/PACKAGE`."
        )
    seen = set[str]()
    for package in packages:
        for page in some_pages(package.name, unambiguous(without_repeated(pages_of(package)), seen)):
            for section in page.sections:
                query = f"{page.title}: {section.heading}" if section.heading else page.title
                yield Pair(query=query, document=section.text, source=SOURCE, domain=package.name, parent=page.title)


def pages_of(package: Path) -> Iterator[DocumentationPage]:
    """Yield all English pages of a package, by path, with all their sections; file names in `NAMES` are skipped.

    Raises:
        CorpusError: A file that cannot be read as a page.
    """
    for path in sorted(package.rglob("*.htm*")):
        name = path.relative_to(package)
        if path.is_file() and not NAMES.fullmatch(path.name) and FOLDERS.isdisjoint(name.parts):
            try:
                page = page_of(name.as_posix(), _read(path))
            except (OSError, EOFError, zlib.error, AssertionError) as error:  # the last of html.parser
                raise CorpusError(f"{path}: expected a page in HTML, found {error!r}. Take the file away.") from error
            if page:
                yield page


def without_repeated(pages: Iterable[DocumentationPage]) -> list[DocumentationPage]:
    """Return the pages with unique titles, without sections whose heading occurs on more than `MOST_PAGES` pages."""
    pages = list(pages)
    titles = Counter(page.title.casefold() for page in pages)
    headings = Counter(name for page in pages for name in {section.heading.casefold() for section in page.sections})
    return [
        replace(
            page,
            sections=[
                section
                for section in page.sections
                if not section.heading or headings[section.heading.casefold()] <= MOST_PAGES
            ],
        )
        for page in pages
        if len(page.title.split()) in HEADING_WORDS and titles[page.title.casefold()] == 1
    ]


def unambiguous(pages: Iterable[DocumentationPage], seen: set[str]) -> Iterator[DocumentationPage]:
    """Yield pages with their readable sections whose query and document are new, if enough sections remain.

    Args:
        pages: Pages of one package.
        seen: Casefolded queries and documents of earlier packages; those of this package are added.
    """
    for page in pages:
        kept = list[PageSection]()
        for section in page.sections:
            if _answers(section, page.title):
                text = cut(section.text)
                keys = {f"{page.title}: {section.heading}".casefold(), text.casefold()}
                if seen.isdisjoint(keys):
                    seen |= keys
                    kept.append(PageSection(section.heading, text))
        if len(kept) >= SECTIONS:
            yield replace(page, sections=kept)


def some_pages(package: str, pages: Iterable[DocumentationPage]) -> list[DocumentationPage]:
    """Return complete pages with at most `MOST_SECTIONS` sections in total, in order, chosen by a hash of paths."""
    pages = list(pages)
    kept, count = set[str](), 0
    for page in sorted(pages, key=lambda page: hashlib.sha256(f"{package} {page.path}".encode()).digest()):
        if count + len(page.sections) <= MOST_SECTIONS:
            kept.add(page.path)
            count += len(page.sections)
    return [page for page in pages if page.path in kept]


def readable(text: str) -> bool:
    """Return True if a text is prose of usual length, judged by its letters, sentences and common words."""
    words = text.split()
    if len(words) not in WORDS or len(SENTENCE_END.findall(text)) < SENTENCES:
        return False
    letters = sum(character.isalpha() or character == " " for character in text)
    common = sum(word.strip(".,;:!?()'\"").lower() in COMMON_WORDS for word in words)
    return letters >= LETTERS * len(text) and common >= COMMON * len(words)


def names_something(heading: str) -> bool:
    """Return True if a heading has a plain word and is no signature, path, option or release."""
    words = heading.split()
    plain = any(PLAIN_WORD.fullmatch(piece) for word in words for piece in re.split(r"[-,:?!'’/\"]", word))
    return len(words) in HEADING_WORDS and plain and not CALL.search(heading) and not RELEASES.search(heading)


def cut(text: str) -> str:
    """Truncate a text to its first `CHARACTERS` characters, at the end of a word."""
    return text if len(text) <= CHARACTERS else text[: CHARACTERS + 1].rpartition(" ")[0]


def _answers(section: PageSection, title: str) -> bool:
    if not readable(section.text) or section.code or RELEASES.search(title):
        return False
    return names_something(section.heading or title) and (section.heading != "" or len(title.split()) > 1)


def _read(path: Path) -> str:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("cp1252", errors="replace")


def main() -> None:
    """Write the pairs, and those that are held out, to files that `cde-rag-train prepare` reads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with a folder for each package that is unpacked there")
    parser.add_argument("output", type=Path, help="a JSONL file")
    parser.add_argument("held_out", type=Path, help="a JSONL file, for prepare --against")
    arguments = parser.parse_args()
    pairs = list(documentation_pairs(arguments.folder))
    write_pairs((pair for pair in pairs if pair.domain not in HELD_OUT), arguments.output)
    write_pairs((pair for pair in pairs if pair.domain in HELD_OUT), arguments.held_out)


if __name__ == "__main__":
    main()
