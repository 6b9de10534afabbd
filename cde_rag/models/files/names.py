"""Names of models: typed by users and kept in manifests, from which the very same model is found again."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode

from cde_rag.errors import ModelError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
OPTIONS = ("attention", "semantics", "context_size", "query_prefix", "document_prefix")


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """Name of a model with the options of its reading: `jxm/cde-small-v2@<revision>?semantics=hub&context_size=64`.

    Attributes:
        base: Bundled name, folder or hub id.
        revision: Branch, tag or commit of a hub id; None for the newest.
        attention: Context attention of a two-way model; None for exact.
        semantics: Semantics of a two-way model; None for those of its training.
        context_size: Number of context documents of a two-way model; None for as many as in training.
        query_prefix: Prefix of queries of a two-way model; None for that of retrieval.
        document_prefix: Likewise, of documents.
    """

    base: str
    revision: str | None = None
    attention: str | None = None
    semantics: str | None = None
    context_size: int | None = None
    query_prefix: str | None = None
    document_prefix: str | None = None

    @classmethod
    def parse(cls, text: str) -> "ModelName":
        """Parse the result of `str`; text without options is a base.

        Raises:
            ModelError: Unknown options, or a context size that is no number.
        """
        head, _, query = text.partition("?")
        options: dict[str, Any]
        try:
            options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
            if "context_size" in options:
                options["context_size"] = int(options["context_size"])
        except ValueError as error:
            raise ModelError(
                f"Expected options such as ?semantics=hub after a model's name, found {text!r}."
            ) from error
        if unknown := sorted(options.keys() - set(OPTIONS)):
            raise ModelError(f"Expected the options {', '.join(OPTIONS)} after a model's name, found {unknown}.")
        base, _, revision = head.partition("@")
        if revision and _HUB_ID.fullmatch(base):
            return cls(base=base, revision=revision, **options)
        return cls(base=head, **options)

    @property
    def is_hub_id(self) -> bool:
        """True if the base could be the id of a repository on the hub."""
        return _HUB_ID.fullmatch(self.base) is not None

    @property
    def has_options(self) -> bool:
        """True if any option of the model's reading is given."""
        return any(getattr(self, option) is not None for option in OPTIONS)

    def completed(
        self,
        *,
        revision: str | None,
        attention: str | None,
        semantics: str | None,
        context_size: int | None,
        prefixes: Mapping[str, str] | None,
    ) -> "ModelName":
        """Return the name completed by options that were given as arguments; None for options that were not.

        Args:
            revision: Branch, tag or commit of a hub id.
            attention: Context attention of a two-way model.
            semantics: Semantics of a two-way model.
            context_size: Number of context documents.
            prefixes: Prefixes for "query" and "document".

        Raises:
            ModelError: The name has another value for an option, or `prefixes` has other keys.
        """
        if prefixes is not None and set(prefixes) != {"query", "document"}:
            raise ModelError(f"Expected prefixes for 'query' and 'document', found {sorted(prefixes)}.")
        given = {
            "revision": revision,
            "attention": attention,
            "semantics": semantics,
            "context_size": context_size,
            "query_prefix": None if prefixes is None else prefixes["query"],
            "document_prefix": None if prefixes is None else prefixes["document"],
        }
        for option, value in given.items():
            said = getattr(self, option)
            if value is not None and said not in (None, value):
                raise ModelError(f"The name specifies {option} {said!r}, the argument for {value!r}; leave one out.")
        return replace(self, **{option: value for option, value in given.items() if value is not None})

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        options = {option: getattr(self, option) for option in OPTIONS if getattr(self, option) is not None}
        return f"{self.base}{revision}{'?' if options else ''}{urlencode(options)}"
