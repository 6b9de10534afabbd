# %% [markdown]
# # Re-contextualize a live Qdrant collection
#
# An application searches a collection of Qdrant by plain vectors of all-MiniLM-L6-v2. Its points get contextual vectors
# beside them while its users search, sixty questions show whether that gains anything, and everything can be taken
# back.

# %%
import tempfile
import threading
import uuid
from pathlib import Path

from qdrant_client import QdrantClient, models

from cde_rag import PlainEmbedder
from cde_rag.evaluation.demo_corpus import demo_corpus
from cde_rag.evaluation.question_folder import unpack
from cde_rag.readers import RecordReader

# %% [markdown]
# ## The application
#
# Pages of this documentation, cut into passages, with payloads as langchain-qdrant writes them.

# %%
corpus = demo_corpus()
folder = Path(tempfile.mkdtemp()) / "docs"
unpack(corpus.pages, folder)
passages = list(RecordReader(folder))
size = len(passages) // 2  # of a context, so that two samples differ
minilm = PlainEmbedder("sentence-transformers/all-MiniLM-L6-v2")
client = QdrantClient(":memory:")  # or url=…
client.create_collection("handbook", models.VectorParams(size=384, distance=models.Distance.COSINE))
texts = [f"{passage.title}\n\n{passage.text}" for passage in passages]
client.upsert(
    "handbook",
    [
        models.PointStruct(
            id=str(uuid.uuid4()),
            vector=vector.tolist(),
            payload={"page_content": text, "metadata": {"source": passage.metadata["source"]}},
        )
        for passage, text, vector in zip(passages, texts, minilm.embed_documents(texts), strict=True)
    ],
)
asked = minilm.embed_queries([question.text for question in corpus.questions]).tolist()


def search(vector: list[float]) -> list[tuple[str, str]]:
    """Return pages and texts, as the application shows them."""
    found = [point.payload for point in client.query_points("handbook", vector, limit=10).points]
    return [(payload["metadata"]["source"].removeprefix("docs/"), payload["page_content"]) for payload in found]


before = [search(vector) for vector in asked]
print(client.count("handbook").count, "points")


# %% [markdown]
# ## Its users
#
# They ask one question after another, and each answer is compared with the one before.


# %%
class Users(threading.Thread):
    """Users of the application."""

    answered = changed = 0

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.done = threading.Event()

    def run(self) -> None:
        """Ask until the work is done."""
        while not self.done.wait(0.01):
            place = self.answered % len(asked)
            self.changed += search(asked[place]) != before[place]
            self.answered += 1


# %% [markdown]
# ## Adopt
#
# `adopt` reads the payloads, samples a context from them, and adds a named vector to each point; points with the same
# `source` are read together. `catch_up` embeds what the application wrote since.

# %%
from cde_rag.adoption import QdrantCollection, adopt, catch_up, release

source = QdrantCollection(client, "handbook", texts="langchain")
users = Users()
users.start()
adopted = adopt(source, parent_key="source", context_size=size)
print(
    f"{adopted.count()} points in context {adopted.embedder.fingerprint[:12]}; written since: {catch_up(adopted).added}"
)

# %% [markdown]
# ## The gain
#
# The number of the sixty questions that the first hit answers, and one of the first five.

# %%
from cde_rag.evaluation.answer_passages import answers_question

Hits = list[list[tuple[str, str]]]  # page and text


def answered(found: Hits, first: int) -> int:
    """The number of questions that one of the first hits answers."""
    judged = zip(corpus.questions, found, strict=True)
    return sum(any(answers_question(one, page, text) for page, text in hits[:first]) for one, hits in judged)


def of_collection(by: str) -> Hits:
    """Hits of the adopted collection."""
    hits = adopted.search_batch([question.text for question in corpus.questions], k=5, by=by)
    return [[(hit.metadata["source"].removeprefix("docs/"), hit.text) for hit in some] for some in hits]


systems = {
    "MiniLM, as it was": before,
    "contextual vectors": of_collection("vectors"),
    "and words": of_collection("hybrid"),
}
for name, found in systems.items():
    print(f"{name:20} {answered(found, 1):4} {answered(found, 5):4}")

# %% [markdown]
# ## Another context, and back
#
# `recontextualize` samples a new context, fills its vectors beside the present ones, and switches; `rollback` switches
# back. `drift` estimates without judgments what a new context would gain, and here it says that there is no need for
# one: a corpus that has not changed its subject keeps its context.

# %%
moved = adopted.recontextualize(seed=1, context_size=size)
print(f"generation {moved.generation}, context {moved.fingerprint[:12]}")
back = adopted.rollback()
print(f"generation {back.generation}, context {back.fingerprint[:12]}")
drift = adopted.drift(context_size=128, probes=32)
low, high = drift.interval
print(f"a new context would gain {100 * drift.gain:+.1f} points ({100 * low:+.1f} … {100 * high:+.1f})")
print("it pays" if drift.pays() else "it does not surely pay: keep the context")

# %% [markdown]
# ## Take everything back

# %%
adopted.close()
release(source)
users.done.set()
users.join()
print(f"{users.answered} questions of users meanwhile, {users.changed} answered otherwise than before")
print("as before:", [search(vector) for vector in asked] == before)
