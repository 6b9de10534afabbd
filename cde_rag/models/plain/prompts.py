"""Prompts of queries and documents: those in a model's files, or those of known models whose files have none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath
from typing import Final

from cde_rag.errors import CDEWarning, warn_user

DOCUMENT_PROMPTS: Final = ("document", "passage", "corpus")  # what models call the prompt of a document
_SEARCHING: Final = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Family:
    """Models that were trained with the same prompts.

    Attributes:
        ids: Pattern of the hub ids of its published models.
        like: Pattern of names that may be a copy or a descendant of one.
        query: Prompt of a query.
        document: Prompt of a document.
        source: Where the prompts are written.
    """

    ids: str
    like: str
    query: str
    document: str
    source: str


FAMILIES: Final = (
    Family(
        ids=r"BAAI/bge-(small|base|large)-en(-v1\.5)?",
        like=r"bge-(small|base|large)-en",
        query=_SEARCHING,
        document="",
        source="model card of BAAI/bge-small-en-v1.5, table of models",
    ),
    Family(
        ids=r"BAAI/bge-(small|base|large)-zh(-v1\.5)?",
        like=r"bge-(small|base|large)-zh",
        query="为这个句子生成表示以用于检索相关文章\N{FULLWIDTH COLON}",
        document="",
        source="model card of BAAI/bge-small-zh-v1.5, table of models",
    ),
    Family(
        ids=r"intfloat/(multilingual-)?e5-(small|base|large)(-v2)?",
        like=r"e5-(small|base|large)(?!.*instruct)",
        query="query: ",
        document="passage: ",
        source="Wang et al. 2022, section 3; model card of intfloat/e5-small-v2, FAQ",
    ),
    Family(
        ids=r"nomic-ai/(nomic-embed-text-v1(\.5)?|modernbert-embed-base)",
        like=r"nomic-embed-text-v1|modernbert-embed",
        query="search_query: ",
        document="search_document: ",
        source="Nussbaum et al. 2024, section 3; model card of nomic-ai/nomic-embed-text-v1.5, task prefixes",
    ),
    Family(
        ids=r"Snowflake/snowflake-arctic-embed-(m|l)-v2\.0",
        like=r"arctic-embed-(m|l)-v2",
        query="query: ",
        document="",
        source="model card of Snowflake/snowflake-arctic-embed-l-v2.0, usage",
    ),
    Family(
        ids=r"Snowflake/snowflake-arctic-embed-(xs|s|m|m-long|m-v1\.5|l)",
        like=r"arctic-embed-(xs|s|m|l)(?!-v2)",
        query=_SEARCHING,
        document="",
        source="Merrick et al. 2024, section 3; model card of Snowflake/snowflake-arctic-embed-s, usage",
    ),
    Family(
        ids=r"mixedbread-ai/mxbai-embed-large-v1",
        like=r"mxbai-embed-large",
        query=_SEARCHING,
        document="",
        source="model card of mixedbread-ai/mxbai-embed-large-v1, quickstart",
    ),
)


def prefixes_of(name: str, prompts: Mapping[str, str]) -> dict[str, str]:
    """Return the prefixes of a "query" and a "document": the model's own, or those of a known model that has none.

    Args:
        name: Exact name of the model: a folder, or a hub id with its revision.
        prompts: The prompts in its files, by name.

    Warns:
        CDEWarning: The name is like that of a known family, and the files have no prompt; once for each name.
    """
    document = next((prompts[each] for each in DOCUMENT_PROMPTS if prompts.get(each)), "")
    own = {"query": prompts.get("query", ""), "document": document}
    if any(prompts.values()):
        return own
    base = name.partition("@")[0]
    for family in FAMILIES:
        if re.fullmatch(family.ids, base):
            return {"query": family.query, "document": family.document}
    last = PurePath(base).name
    if like := next((each for each in FAMILIES if re.search(rf"(^|[-_.]){each.like}", last, re.IGNORECASE)), None):
        _warn(name, like)
    return own


@cache
def _warn(name: str, family: Family) -> None:
    """Warn of missing prompts, once for each model."""
    prefixes = {"query": family.query, "document": family.document}
    warn_user(
        f"{name} has a name like models that were trained with prompts ({family.source}), and its files have none: "
        f"texts are embedded without. If it is one of them, make its embedder with prefixes={prefixes!r}; if not, with "
        'prefixes={"query": "", "document": ""}.',
        CDEWarning,
    )
