# %% [markdown]
# # A chatbot with LangChain
#
# Build the chatbot of the previous notebook as a chain: documents from Python's language reference, a `CDEVectorStore`
# on disk, a small local language model, a history, and numbered passages for each answer. What context can gain, on
# sections of documentation ([rows](../docs/models/cde-mini-1.md#what-to-expect)):
#
# | NDCG@10 × 100, ten documentation sites | MiniLM | cde-mini-1 |
# | --- | --- | --- |
# | queries of page and heading; siblings | 55.2 | **66.0** |
# | queries of the heading alone; no siblings | 64.1 | **71.6** |

# %% [markdown]
# ## Documents and store
#
# `metadata["source"]` is the document of a passage. `CDEVectorStore` embeds each passage with its siblings there.

# %%
import tempfile
import warnings
from pathlib import Path

from langchain_cde import CDEEmbeddings, CDEVectorStore
from langchain_core.documents import Document
from langchain_text_splitters import RecursiveCharacterTextSplitter

from cde_rag.errors import TruncationWarning
from cde_rag.stores.faiss import FaissStore
from python_reference import Search, bm25, documents, hit_rates, plain, questions

warnings.simplefilter("ignore", TruncationWarning)  # tables of the grammar have more tokens than words
splitter = RecursiveCharacterTextSplitter(chunk_size=700, chunk_overlap=100)
read = [Document(text, metadata={"source": topic}) for topic, text in documents().items()]
passages = splitter.split_documents(read)
embeddings = CDEEmbeddings.from_documents(passages)  # the context, of all passages
folder = Path(tempfile.mkdtemp())
store = CDEVectorStore.from_documents(passages, embeddings, store=FaissStore(folder / "reference.faiss"))
print(f"{len(read)} topics, {len(passages)} passages")

# %% [markdown]
# ## The language model
#
# SmolLM2 with 135 million parameters as a chat model of LangChain. To take another one, install its package and replace
# `llm = SmolLM()` below by one of these lines; nothing else changes.
#
# * `from langchain_ollama import ChatOllama; llm = ChatOllama(model="qwen3:8b")` (`pip install langchain-ollama`;
#   Ollama runs and has the model)
# * `from langchain_openai import ChatOpenAI; llm = ChatOpenAI(model="gpt-4.1-mini")` (`langchain-openai`; the key in
#   `OPENAI_API_KEY`)
# * `from langchain_anthropic import ChatAnthropic; llm = ChatAnthropic(model="claude-sonnet-4-5")`
#   (`langchain-anthropic`; `ANTHROPIC_API_KEY`)

# %%
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from local_model import LocalModel

local = LocalModel()
ROLES = {"human": "user", "ai": "assistant", "system": "system"}


class SmolLM(BaseChatModel):
    """LangChain's view of the local model."""

    @property
    def _llm_type(self) -> str:
        return "smollm2"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        said = [(ROLES[message.type], str(message.content)) for message in messages]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(local.chat(said)))])


llm = SmolLM()

# %% [markdown]
# ## The chain

# %%
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough

retriever = store.as_retriever(search_type="hybrid", search_kwargs={"k": 3})  # by vectors and terms together


def numbered(found: list[Document]) -> str:
    """Passages as the prompt shows them."""
    return "\n\n".join(f"[{number}] {one.page_content}" for number, one in enumerate(found, start=1))


prompt = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer in one or two sentences, from these passages only:\n\n{passages}"),
        ("placeholder", "{history}"),
        ("human", "{question}"),
    ]
)
answering = (
    RunnablePassthrough.assign(passages=lambda given: numbered(given["found"])) | prompt | llm | StrOutputParser()
)
chain = RunnablePassthrough.assign(
    found=lambda given: retriever.invoke(given["question"])
) | RunnablePassthrough.assign(answer=answering)

history: list[BaseMessage] = []
for question in ["Which method removes a file ending from a name?", "And how do I cut a string at the last dot?"]:
    done = chain.invoke({"question": question, "history": history})
    history += [HumanMessage(question), AIMessage(done["answer"])]
    print(f"> {question}\n{done['answer']}")
    for number, one in enumerate(done["found"], start=1):
        print(f"  [{number}] {one.metadata['source']}: {' '.join(one.page_content.split())[:84]}")
    print()

# %% [markdown]
# A model this small makes mistakes with confidence, repeats itself, and stops after sixty tokens. cde-rag is
# responsible for the passages.
#
# ## Another process
#
# needs the folder. Context and model come with it, so that nothing can be embedded in the wrong space.

# %%
from cde_rag import Collection

store.collection.close()
store = CDEVectorStore(Collection.open(FaissStore(folder / "reference.faiss")))
print(store.similarity_search("cut a string at the last dot", k=1)[0].metadata)

# %% [markdown]
# ## How good is the retrieval?
#
# 44 questions, written for these notebooks in users' words, each with a phrase that only a passage with the answer has.
# The same passages, searched by this store, by all-MiniLM-L6-v2, from which the bundled model started, and by BM25.

# %%
texts = [passage.page_content for passage in passages]


def contextual(question: str, k: int) -> list[str]:
    """The texts of what the store finds."""
    return [found.page_content for found in store.similarity_search(question, k=k)]


def hybrid(question: str, k: int) -> list[str]:
    """The texts of what the store finds by vectors and terms together."""
    return [found.page_content for found in store.hybrid_search(question, k=k)]


systems: dict[str, Search] = {"contextual": contextual, "hybrid": hybrid, "plain": plain(texts), "BM25": bm25(texts)}
print(hit_rates(systems, questions(texts)))

# %% [markdown]
# ## No gain here
#
# One question is 0.02, and with so few a difference below 0.15 may be chance: this table shows no gain from context.
# [The model's tables](../docs/models/cde-mini-1.md) are over thousands of queries.
