# %% [markdown]
# # A chatbot with LlamaIndex
#
# Build a chatbot that answers questions about Python from Python's language reference, with citations and history, on
# this machine: embeddings from cde-rag, a small language model from a package. Retrieval is measured at the end. What
# context can gain, on sections of documentation ([rows](../docs/models/cde-mini-1.md#what-to-expect)):
#
# | NDCG@10 × 100, ten documentation sites | MiniLM | cde-mini-1 |
# | --- | --- | --- |
# | queries of page and heading; siblings | 55.2 | **66.0** |
# | queries of the heading alone; no siblings | 64.1 | **71.6** |

# %% [markdown]
# ## Documents

# %%
import warnings

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.cde import CDEEmbedding

from cde_rag.errors import TruncationWarning
from python_reference import Search, bm25, documents, hit_rates, plain, questions

warnings.simplefilter("ignore", TruncationWarning)  # tables of the grammar have more tokens than words
splitter = SentenceSplitter(chunk_size=170, chunk_overlap=20)  # cde-mini reads 256 tokens
read = [Document(text=text, id_=topic, metadata={"topic": topic}) for topic, text in documents().items()]
for document in read:
    document.excluded_embed_metadata_keys = ["topic"]  # so that all systems below read the same

print(f"{len(read)} topics")

# %% [markdown]
# ## The index
#
# `CDEEmbedding` stands twice: as a transformation it sees nodes with their documents, so each is embedded given its
# siblings, and as `embed_model` it embeds queries. The context is made of all nodes in the first call.

# %%
embedding = CDEEmbedding()
index = VectorStoreIndex.from_documents(read, transformations=[splitter, embedding], embed_model=embedding)
print(embedding.inspect())
retriever = index.as_retriever(similarity_top_k=3)
for hit in retriever.retrieve("put a literal brace into a format string"):
    print(f"{hit.score:.3f}  {hit.node.metadata['topic']:14}  {' '.join(hit.node.text.split())[:80]}")

# %% [markdown]
# ## The language model
#
# SmolLM2 with 135 million parameters, by `local_model.py` in this folder. To take another one, install its
# package and replace `llm = SmolLM()` below by one of these lines; nothing else changes.
#
# * `from llama_index.llms.ollama import Ollama; llm = Ollama("qwen3:8b")` (`pip install llama-index-llms-ollama`;
#   Ollama runs and has the model)
# * `from llama_index.llms.openai import OpenAI; llm = OpenAI("gpt-4.1-mini")` (`llama-index-llms-openai`; the key in
#   `OPENAI_API_KEY`)
# * `from llama_index.llms.anthropic import Anthropic; llm = Anthropic("claude-sonnet-4-5")`
#   (`llama-index-llms-anthropic`; `ANTHROPIC_API_KEY`)

# %%
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata, MessageRole
from llama_index.core.llms import CustomLLM

from local_model import LocalModel

local = LocalModel()


class SmolLM(CustomLLM):
    """LlamaIndex's view of the local model."""

    @property
    def metadata(self) -> LLMMetadata:
        """What fits in."""
        return LLMMetadata(
            context_window=2048, num_output=local.max_new_tokens, is_chat_model=True, model_name="SmolLM2"
        )

    def chat(self, messages: Any, **_: Any) -> ChatResponse:
        """Answer a conversation."""
        text = local.chat([(message.role.value, message.content or "") for message in messages])
        return ChatResponse(message=ChatMessage(role=MessageRole.ASSISTANT, content=text))

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        """Answer one prompt."""
        return CompletionResponse(text=local.chat([("user", prompt)]))

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        """Answer one prompt, all at once."""
        yield self.complete(prompt, formatted)


llm = SmolLM()

# %% [markdown]
# ## Chat
#
# A `ContextChatEngine` retrieves passages for every message, puts them into the system prompt, and keeps the
# conversation. `source_nodes` contains the citations.

# %%
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.memory import ChatMemoryBuffer

chat = ContextChatEngine.from_defaults(
    retriever=retriever,
    llm=llm,
    memory=ChatMemoryBuffer.from_defaults(token_limit=600),
    system_prompt="Answer in one or two sentences, from the passages only.",
)
for message in ["How do I write a literal brace in a format string?", "And a number with a comma for every thousand?"]:
    answer = chat.chat(message)
    cited = dict.fromkeys(source.node.metadata["topic"] for source in answer.source_nodes)
    print(f"> {message}\n{answer.response}\n  [{', '.join(cited)}]\n")
print(f"The conversation so far has {len(chat.chat_history)} messages.")

# %% [markdown]
# A model this small makes mistakes with confidence, and stops after sixty tokens. cde-rag is responsible for the
# passages.
#
# ## How good is the retrieval?
#
# 44 questions, written for these notebooks in users' words, each with a phrase that only a passage with the answer has.
# *Contextual* is the index above, *hybrid* the same nodes by vectors and BM25 together, *plain* is all-MiniLM-L6-v2,
# from which the bundled model started; *BM25* is words.

# %%
from pathlib import Path
from tempfile import mkdtemp

from llama_index.core.schema import MetadataMode
from llama_index.vector_stores.cde import CDEVectorStore

from cde_rag.stores.faiss import FaissStore

texts = [node.get_content(MetadataMode.NONE) for node in index.docstore.docs.values()]
wide = index.as_retriever(similarity_top_k=5)


def contextual(question: str, k: int) -> list[str]:
    """The texts of what the index finds."""
    return [hit.node.get_content(MetadataMode.NONE) for hit in wide.retrieve(question)][:k]


# The same nodes in a collection, which searches by terms, too: the query mode "hybrid".
collected = CDEVectorStore.from_documents(
    read, FaissStore(Path(mkdtemp()) / "reference.faiss"), transformations=[splitter]
)
both = VectorStoreIndex.from_vector_store(collected, embed_model=collected.embed_model).as_retriever(
    vector_store_query_mode="hybrid", similarity_top_k=5
)


def hybrid(question: str, k: int) -> list[str]:
    """The texts of what the collection finds by vectors and terms together."""
    return [hit.node.get_content(MetadataMode.NONE) for hit in both.retrieve(question)][:k]


systems: dict[str, Search] = {"contextual": contextual, "hybrid": hybrid, "plain": plain(texts), "BM25": bm25(texts)}
print(hit_rates(systems, questions(texts)))

# %% [markdown]
# ## No gain here
#
# One question is 0.02, and with so few a difference below 0.15 may be chance: this table shows no gain from context. At
# the first place the plain embedder may well be ahead. [The model's tables](../docs/models/cde-mini-1.md) have gains
# and losses over thousands of queries; `cde-rag evaluate` measures your own.
