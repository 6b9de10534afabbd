# %% [markdown]
# # When not to use it
#
# Context helps passages of longer documents. Three kinds of data do not need it: texts that stand alone, queries that
# are exact names, and languages that the model does not read. Each is tried here on pages of this documentation, and
# the last section decides by twenty questions. What is printed is what came out.

# %%
import json
import os
import re
import shlex
import tempfile
from pathlib import Path

from typer.testing import CliRunner

from cde_rag.cli import app
from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.evaluation.question_folder import unpack

corpus = demo_corpus()
os.chdir(tempfile.mkdtemp())
unpack(corpus.pages, Path("handbook/pages"))


def lines(path: str, rows: list[dict]) -> None:
    """Write a file of JSON lines."""
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def run(command: str) -> None:
    """Run a command, and print it with its output."""
    print(f"$ {command}\n{CliRunner().invoke(app, shlex.split(command)[1:]).output}")


asked = [
    {"question": one.text, "answers": [{"page": each.page, "quote": each.quote} for each in one.answers]}
    for one in corpus.questions
]
lines("asked.jsonl", asked)

# %% [markdown]
# ## Texts that stand alone
#
# The same sixty questions twice: over passages, which have a page and neighbours, and over records of one sentence,
# which have neither, as products and messages. `null` is the same model without any context. Compare `index_vectors`
# with it in both tables.

# %%
lines(
    "sentences.jsonl",
    [
        {"id": f"{page} {number}", "text": text, "source": page}
        for page, whole in corpus.pages.items()
        for number, text in enumerate(re.split(r"(?<=[.:!?])\s+|\n+(?=[|*#\n])", whole))
        if len(text.split()) > 4
    ],
)
run("cde-rag index handbook/pages pages.faiss --no-progress")
run("cde-rag index sentences.jsonl sentences.faiss --no-progress")
systems = "--system index_vectors --system null --system bm25 --no-progress"
run(f"cde-rag evaluate pages.faiss asked.jsonl {systems}")
run(f"cde-rag evaluate sentences.faiss asked.jsonl {systems}")

# %% [markdown]
# ## Queries that are exact names
#
# Each name that stands once in all pages, such as an option, a class or a metric, is a query for the passage that has
# it. `tune` shows the weight that such queries would choose; with `--dry-run` it writes nothing.

# %%
every_page = "\n".join(corpus.pages.values())
names = [
    {"question": name, "answers": [{"page": page, "quote": name}]}
    for page, text in corpus.pages.items()
    for name in re.findall(r"`([\w.-]{12,})`", text)
    if every_page.count(name) == 1
]
lines("names.jsonl", names)
print(len(names), "names, such as", ", ".join(one["question"] for one in names[:3]))
run("cde-rag evaluate pages.faiss names.jsonl --system index --system index_vectors --system bm25 --no-progress")
run("cde-rag tune pages.faiss names.jsonl --dry-run")

# %% [markdown]
# ## Another language
#
# The default model reads English. `index` counts texts that do not look like it, and names what finds them: words, or
# [a multilingual model](../docs/models/cde-multilingual-1.md).

# %%
german = """# Sichern

Es gibt keinen Befehl zum Speichern, denn jeder Stapel wird geschrieben, sobald er fertig ist. Nach einem Absturz ist
die Sammlung unversehrt, und derselbe Befehl setzt die Arbeit fort.

## Kopieren

Ein Ordner darf nur kopiert werden, wenn er nicht geöffnet ist. Für eine offene Sammlung gibt es einen eigenen Befehl,
der auch dann eine vollständige Kopie schreibt, wenn andere gerade suchen.
"""
Path("handbuch").mkdir()
Path("handbuch/sichern.md").write_text(german, encoding="utf-8")
run("cde-rag index handbuch handbuch.faiss --no-progress")
run('cde-rag search handbuch.faiss "offene Sammlung kopieren" --by bm25 -k 1')

# %% [markdown]
# ## Decide with twenty questions
#
# [Twenty questions](../docs/guide/evaluate.md) about your pages say more than these figures. `--index --alone` leaves
# out the neighbours, `null_hybrid` all context, and `hybrid` is all-MiniLM-L6-v2 with words. The last lines name the
# cheapest system that is not surely worse.

# %%
lines("handbook/questions.jsonl", asked[::3])
run(
    "cde-rag evaluate handbook --index default --index --alone --system index --system null_hybrid --system bm25 "
    "--system minilm --system hybrid --no-progress"
)

# %% [markdown]
# If plain search is as good on your pages, take it. [The table of such cases](../docs/comparison.md) has more of them:
# long passages, a language model that reads each passage anyway, and collections that can never be embedded again.
