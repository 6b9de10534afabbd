# %% [markdown]
# # Quickstart
#
# Index a corpus in its context, search it, then put the same documents into two corpora and compare. Everything is
# local: the model comes with cde-rag, the corpus with Python. What context can gain, measured on documentation
# ([rows](../docs/models/cde-mini-1.md#what-to-expect)):
#
# | NDCG@10 × 100, ten documentation sites | MiniLM | cde-mini-1 |
# | --- | --- | --- |
# | queries of page and heading; siblings | 55.2 | **66.0** |
# | queries of the heading alone; no siblings | 64.1 | **71.6** |

# %% [markdown]
# ## A corpus and its context
#
# Python brings its language reference along as the topics of `help()`. Each topic is cut at blank lines into passages.

# %%
from collections.abc import Iterator

import numpy as np
from pydoc_data.topics import topics


def passages(text: str, size: int = 700) -> Iterator[str]:
    """Paragraphs, put together while they are short."""
    passage = ""
    for paragraph in text.split("\n\n"):
        if passage and len(passage) + len(paragraph) > size:
            yield passage
            passage = ""
        passage = f"{passage}\n\n{paragraph}".strip()
    yield passage


chosen = ["comparisons", "formatstrings", "string-methods", "typesmapping"]
texts = [passage for topic in chosen for passage in passages(topics[topic])]
sources = [topic for topic in chosen for _ in passages(topics[topic])]
print(f"{len(texts)} passages of {len(chosen)} topics")

# %% [markdown]
# `from_corpus` takes a sample of the corpus and runs the model's first stage on it, once. What comes out is the
# *Context*: small, immutable, with a fingerprint over everything that determines the space in which vectors lie.

# %%
from cde_rag import Collection, Context, ContextualEmbedder

embedder = ContextualEmbedder.from_corpus(texts, seed=0)
context = embedder.context
print(f"a sample of {context.size} documents, fingerprint {context.fingerprint[:16]}")

# %% [markdown]
# ## Keep it, and search
#
# A collection is an embedder and a store that hold one space together. With a `parent_key` each passage is embedded
# given its siblings too, the other passages of its topic. A few have more than the 256 tokens that the model reads:
# `add` counts them, and warns.

# %%
import tempfile
from pathlib import Path

from cde_rag.stores.faiss import FaissStore

folder = Path(tempfile.mkdtemp())
reference = Collection.create(FaissStore(folder / "reference.faiss"), embedder, parent_key="topic")
print(reference.add(texts, metadata=[{"topic": source} for source in sources]))

# %% [markdown]
# A collection ranks by vectors and by words together (`by="hybrid"`), which is better on most texts; on questions about
# code and on filings vectors alone can be as good ([how to choose](../docs/guide/search.md#ranked-by)). The scores of
# `by="vectors"` are cosines.

# %%
for hit in reference.search("which values can't be a key?", k=3):
    print(f"{hit.score:.3f}  {hit.metadata['topic']:12}  {' '.join(hit.text.split())[:88]}")
print()
some = {"topic": {"in": ["formatstrings", "string-methods"]}}
for hit in reference.search("fill up with zeros", k=3, where=some):
    print(f"{hit.score:.3f}  {hit.metadata['topic']:14}  {' '.join(hit.text.split())[:86]}")

# %% [markdown]
# Another process needs the path alone. Model and context come back with the vectors, and a query is embedded in the
# context of the documents without anybody having to remember which one that was.

# %%
reference.close()
reference = Collection.open(FaissStore(folder / "reference.faiss"))
print(reference.search("which values can't be a key?", k=1)[0].metadata)
assert reference.embedder.fingerprint == context.fingerprint

# %% [markdown]
# ## The same query in two corpora
#
# The same model reads the same texts and queries among a second corpus: docstrings of Python's modules for the network.
# Both contexts are compared to the *null context*, which knows no corpus.

# %%
import email.message
import ftplib
import http.client
import imaplib
import inspect
import smtplib
import socket
import ssl

modules = (email.message, ftplib, http.client, imaplib, smtplib, socket, ssl)
classes = [one for module in modules for _, one in inspect.getmembers(module, inspect.isclass)]
described = {inspect.getdoc(method) for one in classes for _, method in inspect.getmembers(one, inspect.isfunction)}
docstrings = sorted(text for text in described if text)
print(f"{len(docstrings)} docstrings of {len(modules)} modules")

# %%
model = embedder.model
null = ContextualEmbedder(model, Context.null(model))
network = ContextualEmbedder.from_corpus(docstrings, model=model, seed=0)
queries = ["how do I sort it?", "what is a name bound to?", "stop at a line", "the separator between thousands"]

spaces = {"null": null, "this corpus": embedder, "network modules": network}
documents = {name: one.embed_documents(texts) for name, one in spaces.items()}
asked = {name: one.embed_queries(queries) for name, one in spaces.items()}

for name in ("this corpus", "network modules"):
    moved = 1 - (asked[name] * asked["null"]).sum(1)
    kept = [
        len(set(np.argsort(-before)[:10]) & set(np.argsort(-after)[:10])) / 10
        for before, after in zip(asked["null"] @ documents["null"].T, asked[name] @ documents[name].T, strict=True)
    ]
    print(f"{name:15}  a query moves by {moved.mean():.3f} (1 − cosine); of its ten best hits {np.mean(kept):.0%} stay")

# %%
import matplotlib.pyplot as plt

among = {name: asked[name] - asked["null"] for name in ("this corpus", "network modules")}
axes = np.linalg.qr(np.stack([moves.mean(0) for moves in among.values()], axis=1))[0]  # (384, 2): where queries go
axes *= np.sign((among["this corpus"] @ axes).mean(0))
figure, plot = plt.subplots(figsize=(8, 5), layout="constrained")
plot.scatter(*(documents["null"] @ axes).T, s=8, color="0.8", label="documents, null context")
plot.scatter(*(asked["null"] @ axes).T, s=14, color="black", label="queries, null context")
for name, colour in (("this corpus", "#1f4e5f"), ("network modules", "#b4531f")):
    plot.scatter(*(asked[name] @ axes).T, s=14, color=colour)
    for number, (start, end) in enumerate(zip(asked["null"] @ axes, asked[name] @ axes, strict=True), start=1):
        plot.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6})
        if name == "this corpus":
            plot.annotate(str(number), start, fontsize=9, xytext=(4, -10), textcoords="offset points")
    plot.plot([], [], color=colour, label=f"the query goes to {name}")
listed = "\n".join(f"{number}  {query}" for number, query in enumerate(queries, start=1))
plot.text(1.02, 0.5, listed, transform=plot.transAxes, fontsize=8, va="center")
plot.set_title("One query, two corpora")
plot.set(xlabel="where queries go among this corpus", ylabel="and among network modules, as far as that differs")
plot.legend(fontsize=8)
plt.show()

# %% [markdown]
# Both contexts move the texts about as far, and keep about as many of the hits. Distance is not quality: documents and
# queries move together, and if all move alike, the ranking stays. Measure the value of a context with `cde-rag
# evaluate` on judged queries, or estimate it with `collection.drift()`.
#
# Vectors of two contexts are never compared. Each has a fingerprint, and every store refuses the wrong one:

# %%
from cde_rag.errors import ContextMismatchError

try:
    reference.store.search(asked["network modules"], 1, fingerprint=network.fingerprint)
except ContextMismatchError as error:
    print(error)

# %% [markdown]
# ## No gain here
#
# In this notebook a context changes hits, but nothing shows that it improves them: there are no judged queries. On
# texts that stand alone (abstracts, questions, products) the gain is small, and on financial filings it is a loss
# ([limits](../docs/comparison.md#limits)).
