# %% [markdown]
# # Drift: when does a collection need a new context?
#
# A context is a sample of the corpus at one time. `Collection.drift()` estimates the gain of a new one in NDCG@10,
# without judgments and without changing the collection. Judged gains of a new context, NDCG@10 × 100
# ([measurements](../docs/drift.md)):
#
# | old context | judged gain |
# | --- | --- |
# | null context, documentation | **+0.9 to +2.2** |
# | another domain, completely replaced | −0.6 to **+3.3** |
# | same domain, grown corpus | −0.1 to +0.4 |
#
# In the three states of this notebook's collection the answer may well be "nothing".

# %%
import tempfile
import warnings
from pathlib import Path

from langchain_text_splitters import RecursiveCharacterTextSplitter

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder
from cde_rag.errors import TruncationWarning
from cde_rag.stores.faiss import FaissStore
from python_reference import SHORT, documents

warnings.simplefilter("ignore", TruncationWarning)
splitter = RecursiveCharacterTextSplitter(chunk_size=400, chunk_overlap=0)
passages = {topic: splitter.split_text(text) for topic, text in documents().items()}
sizes = {"context_size": 30, "probes": 20} if SHORT else {"context_size": 128, "probes": 128}
folder = Path(tempfile.mkdtemp())


def add(collection: Collection, topics: list[str]) -> None:
    """Put topics into the collection."""
    for topic in topics:
        collection.add(passages[topic], metadata=[{"topic": topic}] * len(passages[topic]))


def tell(collection: Collection) -> None:
    """What a new context would win."""
    found = collection.drift(**sizes)
    low, high = found.interval
    print(
        f"{found.documents} documents; gain {found.gain:+.4f} NDCG@10 (90 %: {low:+.4f} … {high:+.4f}), "
        f"{found.neighbours_kept:.0%} of neighbours kept: {'it pays' if found.pays() else 'not surely worth it'}"
    )


# %% [markdown]
# ## A collection that began before its documents were there
#
# There was no corpus to sample, so it began with the null context.

# %%
model = CDEModel.from_pretrained("cde-mini")
strings = [topic for topic in passages if "string" in topic or topic.startswith(("compar", "binary"))]
others = [topic for topic in passages if topic not in strings]
reference = Collection.create(FaissStore(folder / "reference.faiss"), ContextualEmbedder(model, Context.null(model)))
add(reference, strings)
tell(reference)

# %% [markdown]
# ## The repair
#
# `recontextualize` samples a context from the collection's own documents and moves all of them to it, while it is
# searched. Whatever drift said above, it is done here once to show how.

# %%
moved = reference.recontextualize(context_size=sizes["context_size"])
print(f"generation {moved.generation}, context {moved.fingerprint[:16]}")
tell(reference)

# %% [markdown]
# The same sample would change nothing. Drift stops after the first stage of the sample, without probes.
#
# ## The corpus changes its subject
#
# Delete all topics about strings and add the rest of the reference.

# %%
add(reference, others)
reference.delete(where={"topic": {"in": strings}})
tell(reference)

# %% [markdown]
# ## The decision
#
# `drift().pays()` is true if the interval is above zero and the estimate at least 0.01; `cde-rag drift` then exits with
# 3. In ten of 39 [measured cases](../docs/drift.md) it recommended a new context, and judged queries gained in each; it
# missed four gains of a point or more.

# %%
if reference.drift(**sizes).pays():
    reference.recontextualize(context_size=sizes["context_size"])
print(f"active: {reference.inspect().fingerprint[:16]}")

# %% [markdown]
# ## No gain here
#
# If the fingerprint is that of the last step, no new context was made: growth within one subject never paid in 19
# trials. With judged queries, use `cde-rag evaluate` instead of the estimate.
