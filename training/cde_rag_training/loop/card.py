"""Model card: data, recipe and results of a training run."""

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from cde_rag_training.config import READ_BY_PACKED, PhaseConfig, TrainingConfig
from cde_rag_training.data.prepared import Prepared
from cde_rag_training.loop.held_out import Retrieval, mean_of
from cde_rag_training.loop.logs import LOG

HELD_OUT = (
    "NDCG@10 × 100 of each query finding its own document among its source's, under the context of that source, none, "
    "and under another source's:"
)
FEW = 10  # rows whose mean stands for the beginning, or the end, of a phase


def card(
    config: TrainingConfig,
    start: Mapping[str, Any],
    data: Sequence[Prepared],
    folder: Path,
    *,
    seconds: float,
    found: Mapping[str, Retrieval],
) -> str:
    """Return the text of a model's README.md.

    Args:
        config: Configuration of the run.
        start: Settings of its start as the network has them; they stand in the recipe in place of the config's.
        data: Data of each phase.
        folder: Folder of the run, with its log.
        seconds: Seconds of all phases.
        found: Held-out results of the finished model, by source.
    """
    with (folder / LOG).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    made = f"trained from `{config.start.model}` by `cde_rag_training` in {seconds / 60:.1f} minutes"
    load = "Load it with `CDEModel.from_pretrained(folder)`."
    lines = [f"# {config.start.name}", "", f"A contextual embedding model, {made}. {load}", "", "## Data", ""]
    for phase, prepared in zip(config.phases, data, strict=True):
        counts = Counter(prepared.source_names[code] for code in np.asarray(prepared.sources).tolist())
        lines.append(f"Phase *{phase.name}*, {len(prepared)} pairs:")
        lines += ["", "| source | pairs |", "| --- | --- |"]
        lines += [f"| {source} | {count} |" for source, count in sorted(counts.items())]
        lines += ["", f"Prepared with `{json.dumps(prepared.settings)}`.", ""]
    lines += ["## Training", "", "| phase | updates | loss, first | last | null − own, last | foreign − own, last |"]
    lines += ["| --- | --- | --- | --- | --- | --- |", *(_phase(phase.name, rows) for phase in config.phases), ""]
    lines.append("Losses in nats, means of ten rows of the log; null − own is what the context takes from the loss.")
    if found:
        lines += ["", *_held_out(rows, found)]
    recipe = {name: value for name, value in asdict(config).items() if name not in ("machine", "prepare")}
    recipe["phases"] = [_settings(phase) for phase in config.phases]
    recipe["start"] = {"model": config.start.model, "name": config.start.name, **start}
    lines += ["", "## Recipe", "", "```json", json.dumps(recipe, indent=1), "```", ""]
    return "\n".join(lines)


def _settings(phase: PhaseConfig) -> dict[str, Any]:
    """Return a phase's settings without those that its kind of batches does not read."""
    settings = asdict(phase)
    if phase.batches == "packed":
        settings["corpora"] = {name: settings["corpora"][name] for name in READ_BY_PACKED}
    else:
        del settings["packing"]
    return settings


def _phase(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    own = [row for row in rows if row["phase"] == name and row["loss"]]
    losses = [float(row["loss"]) for row in own]
    gains = {
        column: [float(row[column]) for row in own if row[column]][-FEW:] for column in ("null_gain", "foreign_gain")
    }
    cells = [name, str(len(own)), f"{mean(losses[:FEW]):.3f}", f"{mean(losses[-FEW:]):.3f}"]
    cells += [f"{mean(values):.3f}" if values else "not measured" for values in gains.values()]
    return f"| {' | '.join(cells)} |"


def _held_out(rows: Sequence[Mapping[str, str]], found: Mapping[str, Retrieval]) -> list[str]:
    first = rows[0]
    start = [first[f"{name}_ndcg"] for name in Retrieval._fields]
    table = [
        ("start, mean", Retrieval(*(float(value or "nan") for value in start))),
        *found.items(),
        ("mean", mean_of(dict(found))),
    ]
    lines = ["## Held-out pairs", "", HELD_OUT, "", "| source | own | null | foreign |", "| --- | --- | --- | --- |"]
    for name, each in table:
        cells = ["" if math.isnan(value) else f"{100 * value:.1f}" for value in each]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines
