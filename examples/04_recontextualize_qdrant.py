# %% [markdown]
# # Re-contextualize a collection that Qdrant has already
#
# An application keeps plain vectors of all-MiniLM-L6-v2 in Qdrant, as LangChain writes them. Without taking anything
# from it, and while its users ask, the same points get contextual vectors beside the plain ones; then NDCG@10 says
# whether that was worth it, and everything is taken back.
#
# What is used here (`Application`, `Traffic`, the table) is in `examples/recontextualize_existing_qdrant.py`, which
# does the same from the command line, also against a server.

# %%
import warnings

from qdrant_client import QdrantClient

from cde_rag import TruncationWarning
from cde_rag.collection.adopt_qdrant import adopt, catch_up, release
from cde_rag.evaluation.demo_questions import questions
from cde_rag.evaluation.bm25 import BM25
from python_reference import SHORT
from recontextualize_existing_qdrant import DEPTH, NAME, Application, Traffic, corpus, names, scores, table, under

warnings.simplefilter("ignore", TruncationWarning)  # what a docstring is for stands at its beginning

# %% [markdown]
# ## What was there
#
# The documentation of modules of Python's standard library, and twenty questions of users with their answers.

# %%
asked = questions()
records = corpus(60 if SHORT else 600, asked)
client = QdrantClient(":memory:")  # or url=…
application = Application(client, records)
before = scores(
    [application.search(vector) for vector in application.model([one.text for one in asked]).tolist()], asked
)
print(f"{len(records)} points; NDCG@10 {before.mean():.3f}")

# %% [markdown]
# ## Adopt it, and move it, under live queries
#
# `adopt` reads the payloads, samples a context from them, and writes a second, named vector to each point; `catch_up`
# takes in what the application wrote since (here nothing). `recontextualize` samples anew and moves the collection, and
# `rollback` goes back. All the while `Traffic` asks the application and compares each answer to the one from before.

# %%
traffic = Traffic(application, asked)
size = min(512, len(records) // 2)
with under(traffic):
    adopted = adopt(client, NAME, texts="langchain", context_size=size, parent_key="module")
    contextual = scores(names(adopted, asked), asked)
    print(f"adopted in context {adopted.inspect().fingerprint[:16]}; written since: {catch_up(adopted).adopted}")
    moved = adopted.recontextualize(seed=1, context_size=size)
    print(f"generation {moved.generation} in context {moved.fingerprint[:16]}")
    another = scores(names(adopted, asked), asked)
    back = adopted.rollback()
    print(f"generation {back.generation} in context {back.fingerprint[:16]}")
    again = scores(names(adopted, asked), asked)
assert (again == contextual).all()
print(f"{traffic.answered} answered, {traffic.changed} otherwise than before, {len(traffic.failed)} failed")

# %% [markdown]
# ## Was it worth it?

# %%
words = BM25([record.text for record in records])
found = [[records[place].id for place, _ in words.search(question.text, DEPTH)] for question in asked]
bm25 = scores(found, asked)
print(*table(before, {"BM25": bm25, "contextual": contextual, "another context": another}), sep="\n")

# %% [markdown]
# Here it was not. These are short descriptions that stand well alone; the bundled model cde-mini-1 loses a little
# to MiniLM on them, with the interval below zero, and wins on sections of longer documentation
# ([tables](../docs/models/cde-mini-1.md)). That is why the collection can be given back:

# %%
adopted.close()
release(client, NAME)
left = scores([application.search(vector) for vector in traffic.vectors], asked)
print(f"NDCG@10 of the application: {left.mean():.3f}, as before: {bool((left == before).all())}")
