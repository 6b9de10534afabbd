# %% [markdown]
# # Drift: when does a collection need a new context?
#
# A context is a sample of the corpus as it was. `Collection.drift()` estimates what NDCG@10 would gain by a new one,
# without judgments and without a change. Mostly the answer is "nothing", and it may well be so in all three states that
# this notebook takes one collection through.

# %%
import tempfile
import warnings
from pathlib import Path

from langchain_text_splitters import RecursiveCharacterTextSplitter

from cde_rag import CDEModel, Collection, Context, ContextualEmbedder, TruncationWarning
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
# The same sample again would change nothing. Drift sees that after the first stage of the sample, and probes nothing.
#
# ## The corpus changes its subject
#
# Everything about strings goes; the rest of the reference comes.

# %%
add(reference, others)
reference.delete(where={"topic": {"in": strings}})
tell(reference)

# %% [markdown]
# The figure: first-stage vectors of the sample that the context was made of, and of the sample that a new one would be
# made of. They may lie far apart where a new context wins little; the estimate beside them is what decides.

# %%
from IPython.display import Image, display

drift = reference.drift(**sizes)
drift.plot(folder / "drift.png")
display(Image(folder / "drift.png"))

# %% [markdown]
# ## The decision
#
# `drift().pays()` is true where the whole interval is above zero and the estimate at least 0.01. In a cron job
# `cde-rag drift` says so by its exit code, 3. How far the estimate can be trusted, and where it is of little use, is
# [measured](../docs/drift.md): in ten of 39 cases it called for a new context, and judged queries gained in each; it
# missed four gains of a point or more.

# %%
if drift.pays():
    reference.recontextualize(context_size=sizes["context_size"])
print(f"active: {reference.inspect().fingerprint[:16]}")
