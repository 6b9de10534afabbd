"""Contextual models in MTEB: a context for each task, and a score for each context.

    from lab.mteb import CDEForMTEB, local_retrieval_task, sweep

    mteb.evaluate(CDEForMTEB("jxm/cde-small-v2"), mteb.get_tasks(["SciFact"]))
    print(sweep([local_retrieval_task("handbook/")], seeds=[0, 1, 2]))  # several contexts of each task; offline

`python -m lab.mteb run` calls `sweep`. For retrieval alone, `cde_rag.evaluate` gives the same NDCG@10, compared with
baselines that need no contextual model.
"""

from cde_rag.errors import require

require("mteb", "mteb")

from lab.mteb.model import CDEForMTEB  # noqa: E402
from lab.mteb.sweep import MTEBSweep, SweepProgress, TaskScores, sweep  # noqa: E402
from lab.mteb.tasks import find_tasks, local_retrieval_task  # noqa: E402

__all__ = [
    "CDEForMTEB",
    "MTEBSweep",
    "SweepProgress",
    "TaskScores",
    "find_tasks",
    "local_retrieval_task",
    "sweep",
]
