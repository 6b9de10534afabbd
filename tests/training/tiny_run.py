"""A run of the tiny model on the prepared stub: seconds long, every part of it at work."""

import csv
import sys
from pathlib import Path

from tiny import tiny_network, tiny_tokenizer

from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag_training.config import (
    EvaluationConfig,
    GuardConfig,
    LossConfig,
    MachineConfig,
    PhaseConfig,
    RatesConfig,
    ScheduleConfig,
    StartConfig,
    TrainingConfig,
)
from cde_rag_training.corpora.batch_contexts import ContextConfig
from cde_rag_training.corpora.corpus_batches import CorporaConfig
from cde_rag_training.loop.logs import TIMES
from cde_rag_training.loop.training import train

MACHINE = MachineConfig(precision="float32", mini_batch_size=8, save_every=3)
CORPORA = CorporaConfig(batch_size=8, context=ContextConfig(smallest=4, largest=8))
RATES = RatesConfig(encoder=1e-3, context=1e-3)


def phase(updates=8, **fields):
    """A phase that is over soon."""
    return PhaseConfig(
        **{
            "corpora": CORPORA,
            "rates": RATES,
            "schedule": ScheduleConfig(updates=updates),
            "loss": LossConfig(temperature=0.1),
            "average": 0.9,
            **fields,
        }
    )


def config(start: Path, *phases, **fields):
    """A run that looks at everything often."""
    return TrainingConfig(
        **{
            "start": StartConfig(model=str(start), name="made"),
            "phases": phases or (phase(),),
            "machine": MACHINE,
            "evaluation": EvaluationConfig(every=4, documents=20, queries=10, probe_every=2),
            "guard": GuardConfig(action="none"),
            **fields,
        }
    )


def start_folder(folder: Path) -> Path:
    """The tiny model as a folder; nothing is rounded when it is read again."""
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    return folder


def rows(output: Path, *, without=TIMES):
    """The log, without what depends on the clock."""
    with (output / "log.csv").open() as file:
        return [{name: value for name, value in row.items() if name not in without} for row in csv.DictReader(file)]


if __name__ == "__main__":  # a process that can be killed: python tiny_run.py FOLDER OUTPUT
    folder, output = map(Path, sys.argv[1:])
    train(
        folder / "prepared",
        config(folder / "start", phase(8), phase(8, name="second", average=0.0)),
        output,
        held_out=folder / "held_out",
    )
