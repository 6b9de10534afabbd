"""Sections of the READMEs of installed packages, for the demo, and their names as queries."""

from collections.abc import Iterable
from email.message import Message
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Final, cast

from cde_rag.evaluation.demo_corpus import PARENT_KEY
from cde_rag.evaluation.demo_questions import Question
from cde_rag.evaluation.markdown_set import PASSAGE, SHORTEST, sections
from cde_rag.readers.splitting import split
from cde_rag.records import Record

PACKAGES: Final = tuple(  # of the demo, where they are installed; cde-rag and its extras depend on them
    "annotated-doc annotated-types click editables faiss-cpu filelock fsspec hf-xet httpcore2 httpx2 huggingface-hub "
    "idna jaxtyping jinja2 markdown-it-py markupsafe mdurl pyarrow pydantic-core rich safetensors "
    "semantic-text-splitter sympy tokenizers torch truststore typer typing-extensions typing-inspection "
    "wadler-lindig".split()
)
_LONGEST: Final = 60  # characters of a heading that is a query


def readme_versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of those packages that are installed with a README in Markdown, by name."""
    return {found.metadata["Name"]: found.version for found in _installed(packages)}


def readme_sections(packages: Iterable[str] = PACKAGES) -> tuple[list[Record], list[Question]]:
    """Read the sections of packages' READMEs, and make a query of each heading.

    Args:
        packages: Names of packages; those that are not installed, or have no README in Markdown, are left out.

    Returns:
        Passages of 600 characters at most, without their heading, each with the README's title, as `cde-rag index`
        makes them; metadata: `module` (the package), `kind`, `section` (the heading) and `source`. Queries such as
        "rich Installing", each answered by the passages of its section; headings that a README has twice make none.

    Raises:
        MissingExtraError: The extra `files` is not installed.
    """
    records, queries = list[Record](), list[Question]()
    for found in _installed(packages):
        name = found.metadata["Name"]
        answers = dict[str, list[frozenset[str]]]()
        for number, (title, heading, text) in enumerate(sections(_readme(found), name)):
            if len(text) < SHORTEST:
                continue
            metadata = {PARENT_KEY: name, "kind": "section", "section": heading, "source": f"README of {name}"}
            passages = [
                Record(f"{name}#{number}.{part}", text[start:end], title, metadata)
                for part, (start, end) in enumerate(split(text, PASSAGE, markdown=True))
            ]
            records += passages
            if heading and len(heading) <= _LONGEST:
                answers.setdefault(heading, []).append(frozenset(one.id for one in passages))
        queries += [Question(f"{name} {heading}", one) for heading, (one, *others) in answers.items() if not others]
    return records, queries


def _installed(packages: Iterable[str]) -> list[Distribution]:
    found = list[Distribution]()
    for name in packages:
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue
        if "markdown" in str(cast(Message, one.metadata).get("Description-Content-Type")) and _readme(one).strip():
            found.append(one)
    return found


def _readme(found: Distribution) -> str:
    return str(cast(Message, found.metadata).get_payload() or "")
