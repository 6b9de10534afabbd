# %% [markdown]
# # Train your own
#
# Questions about your pages, as your users ask them, are the best there is to train on. `cde-rag-train adapt` takes
# some two hundred, or lets a language model of yours write them; it holds out pages, trains some minutes on a CPU, and
# keeps the result only if it is surely better on the pages that it held out.
#
# Here are sixty questions about this documentation: enough to see how it goes, and few to gain by. Pages that answer
# one question stay in one part, so each question comes with one answer.

# %%
import json
import tempfile
from pathlib import Path

from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.evaluation.question_folder import unpack

corpus = demo_corpus()
place = Path(tempfile.mkdtemp())
unpack(corpus.pages, place / "docs")
lines = [
    {"question": one.text, "answers": [{"page": f"docs/{each.page}", "quote": each.quote} for each in one.answers[:1]]}
    for one in corpus.questions
]
(place / "asked.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
print(json.dumps(lines[0], indent=1))

# %% [markdown]
# ## The training data
#
# On the command line: `cde-rag-train adapt docs --questions asked.jsonl --output my-model --dry-run`.

# %%
from typer.testing import CliRunner

from cde_rag_training.cli import app


def command(*words: object) -> str:
    """Run cde-rag-train, and return its output."""
    return CliRunner().invoke(app, list(map(str, words))).output


adapt = (
    "adapt",
    place / "docs",
    "--questions",
    place / "asked.jsonl",
    "--output",
    place / "my-model",
    "--no-progress",
    "--seed",
    1,
)
print(command(*adapt, "--dry-run"))

# %% [markdown]
# ## Train, and compare
#
# The same command without `--dry-run`. Its last lines compare the model before, the model after, and BM25 by the
# questions about the pages that were held out.

# %%
print(command(*adapt))

# %% [markdown]
# ## The report
#
# `report.json` has these figures and more, for programs: `better` decides in a nightly job.

# %%
report = json.loads(next(place.glob("my-model/**/report.json")).read_text(encoding="utf-8"))
print(json.dumps({name: report[name] for name in ("better", "difference", "updates", "verdict")}, indent=1))

# %% [markdown]
# A model that is better is used by its folder: `cde-rag index docs/ docs.faiss --model my-model`. "Keep your model" is
# a good answer, too: nothing was changed, and two hundred questions, or questions by a language model
# (`--llm http://localhost:11434/v1 --llm-model qwen3:8b`), are the next try
# ([how to](../docs/training.md)).
