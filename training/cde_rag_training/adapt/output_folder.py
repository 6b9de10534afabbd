"""Output folder of an adaptation: names of its files, and the plan that it belongs to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cde_rag._files import write_durably
from cde_rag.context.file_format import canonical_json
from cde_rag.errors import ResumeError

PLAN: Final = "plan.json"
REPORT: Final = "report.json"
WORK: Final = "work"
REJECTED: Final = "not-better"


def claimed(output: Path, plan: Mapping[str, Any]) -> Path:
    """Return the working folder, in an output folder that belongs to this plan: its corpus and settings.

    Args:
        output: Created if missing.
        plan: All that the result depends on, as JSON.

    Raises:
        ResumeError: The folder holds something else, or a finished adaptation.
    """
    path = output / PLAN
    if (output / REPORT).exists():
        raise ResumeError(f"{output} holds a finished adaptation. Name another folder, or delete that one.")
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != json.loads(canonical_json(plan)):
            raise ResumeError(
                f"{output} holds an adaptation to another corpus or with other settings. Name another folder, or give "
                "the settings given there to continue it."
            )
    elif output.is_dir() and any(output.iterdir()):
        raise ResumeError(f"{output}: expected a folder that is new or empty, found files in it. Name another folder.")
    else:
        output.mkdir(parents=True, exist_ok=True)
        write_durably(path, canonical_json(plan).encode())
    return output / WORK
