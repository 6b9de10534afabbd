"""Setting of Open WebUI's embedding model, in its database, which wins over its environment from the second start on.

Since 0.10 or so the table `config` has one row for each setting; before, one JSON document of all that were saved.
"""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

DATABASE: Final = "webui.db"
_ENGINE, _MODEL = "rag.embedding_engine", "rag.embedding_model"


class EmbeddingSetting(NamedTuple):
    """Embedding model that Open WebUI has.

    Attributes:
        engine: Empty for a SentenceTransformer; `openai`, `ollama` or `azure_openai` for an API.
        model: Its name or folder.
    """

    engine: str
    model: str

    @classmethod
    def read(cls, folder: Path) -> "EmbeddingSetting | None":
        """Read the setting in a data folder; None if it was never saved, or is in another database.

        Args:
            folder: Data folder of Open WebUI.
        """
        file = folder / DATABASE
        if not file.is_file():
            return None
        try:
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
                found = _saved(database)
        except (sqlite3.Error, ValueError):  # encrypted, or of a version with another table
            return None
        model = found.get(_MODEL)
        return cls(str(found.get(_ENGINE) or ""), str(model)) if model else None

    def __str__(self) -> str:
        return f"{self.engine}: {self.model}" if self.engine else self.model


def _saved(database: sqlite3.Connection) -> dict[str, Any]:
    columns = {row[1] for row in database.execute("PRAGMA table_info(config)")}
    if "key" in columns:
        rows = database.execute("SELECT key, value FROM config WHERE key IN (?, ?)", (_ENGINE, _MODEL))
        return {key: json.loads(value) for key, value in rows}
    row = database.execute("SELECT data FROM config ORDER BY id DESC LIMIT 1").fetchone()
    values: dict[str, Any] = json.loads(row[0]).get("rag", {}) if row else {}
    return {f"rag.{key}": value for key, value in values.items()}
