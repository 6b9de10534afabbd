# %% [markdown]
# # Tune with twenty judged questions
#
# A collection ranks by vectors and words together. How much words should count depends on the texts and on the people
# who ask: twenty questions whose answers you know choose it. The page of `cde-rag serve` collects them with a click
# each; here they come with the corpus, and the other forty judge.

# %%
import json
import tempfile
from pathlib import Path

from cde_rag import Collection
from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.evaluation.question_folder import unpack

corpus = demo_corpus()
place = Path(tempfile.mkdtemp())
unpack(corpus.pages, place / "docs")
docs = Collection.from_files(place / "docs", store=place / "docs.faiss")
print(docs.count(), "passages")

# %% [markdown]
# ## Judged questions
#
# A line of JSON has a question and its answers, each a page and words of it. Whatever the splitter does later, the
# words stay findable.


# %%
def write(name: str, questions: list) -> Path:
    """Write questions in the form that tune and evaluate read."""
    lines = [
        {
            "question": one.text,
            "answers": [{"page": f"docs/{each.page}", "quote": each.quote} for each in one.answers],
        }
        for one in questions
    ]
    (place / name).write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return place / name


chosen, others = list(corpus.questions[::3]), [one for n, one in enumerate(corpus.questions) if n % 3]
judged, held_out = write("judged.jsonl", chosen), write("held_out.jsonl", others)
print(len(chosen), "questions choose,", len(others), "judge")
print(judged.read_text(encoding="utf-8").splitlines()[0])

# %% [markdown]
# ## Tune
#
# On the command line: `cde-rag tune docs.faiss judged.jsonl`. The new weight is stored if the gain is sure on questions
# that did not choose it; with twenty that is rare, and "unchanged" is a good answer.

# %%
from typer.testing import CliRunner

from cde_rag.cli import app


def command(*words: object) -> str:
    """Run cde-rag, and return its output."""
    return CliRunner().invoke(app, list(map(str, words))).output


docs.close()
print(command("tune", place / "docs.faiss", judged))

# %% [markdown]
# ## Evaluate
#
# The index as it is, beside its parts and beside plain search, on the forty questions that chose nothing. On the
# command line: `cde-rag evaluate docs.faiss held_out.jsonl`.

# %%
print(
    command(
        "evaluate",
        place / "docs.faiss",
        held_out,
        "--system",
        "index",
        "--system",
        "index_vectors",
        "--system",
        "bm25",
        "--no-progress",
    )
)
