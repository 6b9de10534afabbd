"""Steps of a long job that write files into one folder; a step that was finished is not done again."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cde_rag._files import write_durably
from cde_rag.context.file_format import canonical_json
from cde_rag_training.data.array_folder import MANIFEST, PreparedError, StatedFile, check_files, stated, write_array


class Step(NamedTuple):
    """Output of a step.

    Attributes:
        arrays: By name.
        facts: Metadata of the arrays; JSON.
    """

    arrays: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]


class Steps:
    """Resumable steps; a step that was finished earlier is not repeated.

    A step is identified by its name and a key of everything that its files depend on. It is finished if a record with
    that key was written, after its files, and the files still match the record's checksums.

    Args:
        folder: For the files; created if missing.
        records: Folder for the records.
    """

    def __init__(self, folder: Path, records: Path) -> None:
        self._folder, self._records = folder, records
        for path in (folder, records):
            path.mkdir(parents=True, exist_ok=True)

    def run(self, name: str, key: Mapping[str, Any], make: Callable[[], Step]) -> Mapping[str, Any]:
        """Run a step unless it is finished.

        Args:
            name: Name of the step.
            key: All that its files depend on; JSON.
            make: Does it.

        Returns:
            Its facts.
        """
        record = self._record(name, key)
        if record is not None:
            return record
        (self._folder / MANIFEST).unlink(missing_ok=True)  # what is about to change is not ready
        arrays, facts = make()
        for array in arrays:
            write_array(self._folder / f"{array}.npy", arrays[array])
        files = {f"{array}.npy": stated(self._folder / f"{array}.npy") for array in arrays}
        content = {"key": key, "facts": facts, "files": {file: list(files[file]) for file in files}}
        write_durably(self._records / f"{name}.json", canonical_json(content).encode())
        return facts

    def _record(self, name: str, key: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the facts of a finished step, or None."""
        try:
            record = json.loads((self._records / f"{name}.json").read_bytes())
            if canonical_json(record["key"]) != canonical_json(key):
                return None
            check_files(self._folder, {file: StatedFile(*stated) for file, stated in record["files"].items()})
        except (OSError, ValueError, TypeError, LookupError, PreparedError):
            return None
        return record["facts"]
