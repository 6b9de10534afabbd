"""How a model is called: what a user types, and what manifests keep, from which the very same model is found again."""

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
    """A model, and how it is to be read: `jxm/cde-small-v2@<revision>?semantics=hub&context_size=64`.

    Attributes:
        base: A bundled name, a folder or a hub id.
        revision: Of a hub id: a branch, tag or commit; None for the newest.
        attention: Of a two-way model; None for exact.
        semantics: Of a two-way model; None for what it was trained with.
        context_size: Of a two-way model, context documents; None for as many as in training.
        query_prefix: Of a two-way model; None for that of retrieval.
        document_prefix: Likewise.
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
        """Read what `str` wrote; text without options is a base.

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
        """Whether the base could be the id of a repository on the hub."""
        return _HUB_ID.fullmatch(self.base) is not None

    @property
    def has_options(self) -> bool:
        """Whether it says how the model is to be read."""
        return any(getattr(self, option) is not None for option in OPTIONS)

    def asked(
        self,
        *,
        revision: str | None,
        attention: str | None,
        semantics: str | None,
        context_size: int | None,
        prefixes: Mapping[str, str] | None,
    ) -> "ModelName":
        """With options that were given beside the name.

        Args:
            revision: As in the class, like the rest.
            attention: None where it was not given, like the rest.
            semantics: As in the class.
            context_size: Documents.
            prefixes: For "query" and "document".

        Raises:
            ModelError: The name says otherwise.
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
                raise ModelError(f"The name asks for {option} {said!r}, the argument for {value!r}; leave one out.")
        return replace(self, **{option: value for option, value in given.items() if value is not None})

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        options = {option: getattr(self, option) for option in OPTIONS if getattr(self, option) is not None}
        return f"{self.base}{revision}{'?' if options else ''}{urlencode(options)}"
