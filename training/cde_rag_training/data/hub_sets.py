"""Data sets of the Hugging Face hub by name, as rows."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cde_rag.errors import CorpusError, require

HUB = "hub:"  # begins the name of a data set where files are named, too
_NAME = re.compile(r"hub:(?P<name>[^@#]+)(?:@(?P<revision>[^#]+))?(?:#(?P<config>[^/]*)(?:/(?P<split>.+))?)?")


@dataclass(frozen=True)
class HubSet:
    """One split of a data set, read anew at each iteration.

    Attributes:
        name: Name on the hub, OWNER/NAME; or a local folder that `datasets` reads.
        revision: Branch, tag or commit; None for the newest.
        config: Configuration; None for the default one.
        split: Name of the split.
        stream: True to read rows as they come over the network; False to download the split first, and keep it in the
            cache of `datasets`.
    """

    name: str
    revision: str | None = None
    config: str | None = None
    split: str = "train"
    stream: bool = False

    @classmethod
    def parse(cls, text: str, *, stream: bool = False) -> "HubSet":
        """Parse `hub:OWNER/NAME`, with `@REVISION`, `#CONFIG` and `/SPLIT` after it if need be.

        Args:
            text: The name.
            stream: True to stream the rows.

        Raises:
            CorpusError: It is of another form.

        Examples:
            >>> found = HubSet.parse("hub:owner/questions@v2#pairs/dev")
            >>> found.name, found.revision, found.config, found.split
            ('owner/questions', 'v2', 'pairs', 'dev')
        """
        found = _NAME.fullmatch(text)
        if found is None:
            raise CorpusError(f"Expected a data set as hub:OWNER/NAME@REVISION#CONFIG/SPLIT, found {text!r}.")
        return cls(found["name"], found["revision"], found["config"] or None, found["split"] or "train", stream)

    @property
    def label(self) -> str:
        """Last part of the name: the source of rows without one."""
        return self.name.rstrip("/").rpartition("/")[2]

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the rows.

        Raises:
            CorpusError: There is no such data set, configuration or split, or no connection.
            MissingExtraError: `datasets` is not installed.
        """
        datasets: Any = require("datasets", "interop")
        try:
            yield from datasets.load_dataset(
                self.name, self.config, split=self.split, revision=self.revision, streaming=self.stream
            )
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise CorpusError(
                f"{HUB}{self.name}: expected the split {self.split!r} of a data set, found: {reason}. Name it as "
                "hub:OWNER/NAME#CONFIG/SPLIT, and run the command again where the connection broke."
            ) from error
