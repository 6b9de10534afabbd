# %% [markdown]
# # Quickstart
#
# Index a folder, search it in users' words, filter, and bring it up to date. All of it runs here, offline: the model
# comes with cde-rag, and the folder holds pages of this documentation.

# %%
import tempfile
from pathlib import Path

from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.evaluation.question_folder import unpack

place = Path(tempfile.mkdtemp())
folder = place / "docs"  # a folder of yours is as good
unpack(demo_corpus().pages, folder)
print(len(list(folder.rglob("*.md"))), "pages")

# %% [markdown]
# ## Index
#
# One call reads the files, cuts them into passages that the model reads completely, takes a sample of the corpus as
# its *context*, and embeds each passage given other passages of its page. The command for it is `cde-rag index docs
# docs.faiss`.

# %%
from cde_rag import Collection

docs = Collection.from_files(folder, store=place / "docs.faiss")
print(docs.count(), "passages")

# %% [markdown]
# ## Search
#
# Passages are ranked by vectors and words together. A score is from 0 to 1.

# %%
from typing import Any


def show(query: str, **options: Any) -> None:
    """Print the first three hits."""
    print(query)
    for hit in docs.search(query, k=3, **options):
        print(f"  {hit.score:.2f}  {hit.metadata['source']:26}  {' '.join(hit.text.split())[:70]}")


show("can colleagues already search while the first big import is running?")
show("can one customer's words leak into another's vectors?")
show("how much memory do a million passages need?")

# %% [markdown]
# A filter is about metadata; `source` is the file of a passage, `section` its heading.

# %%
show("what happens when the disk is full?", where={"source": {"in": ["docs/durability.md", "docs/faq.md"]}})

# %% [markdown]
# ## Update
#
# The same files again: only what changed is embedded, and passages that a page has no longer are deleted.

# %%
from cde_rag.readers import RecordReader

(folder / "mascot.md").write_text("# Mascot\n\nA swift, since it sleeps on the wing.\n", encoding="utf-8")
print(docs.add_records(RecordReader(folder)))
show("which animal is the mascot?")

# %% [markdown]
# ## Another process
#
# needs the path alone: model and context are stored with the vectors. A query that was embedded in another context is
# an error, so that vectors of two spaces are never compared.

# %%
docs.close()
docs = Collection.open(place / "docs.faiss")
show("which animal is the mascot?")
docs.close()

# %% [markdown]
# Next: [a chatbot with LlamaIndex](02_chat_llamaindex.py) or [with LangChain](03_chat_langchain.py); `cde-rag demo`
# compares this search with others by sixty questions whose answers are known.
