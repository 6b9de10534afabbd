# %% [markdown]
# # A chatbot with LlamaIndex
#
# Answer questions about a documentation with citations and history, on this machine. The pages are those of cde-rag
# itself.

# %%
import tempfile
from pathlib import Path

from llama_index.core import Document, VectorStoreIndex
from llama_index.vector_stores.cde import CDEVectorStore

from cde_rag.evaluation.demo_corpus import demo_corpus

corpus = demo_corpus()
documents = [Document(text=text, id_=page, metadata={"page": page}) for page, text in corpus.pages.items()]
for document in documents:
    document.excluded_embed_metadata_keys = ["page"]
print(len(documents), "pages")

# %% [markdown]
# ## The index
#
# `VectorStoreIndex.from_documents(documents, embed_model=CDEEmbedding())` works, too, and keeps vectors where
# LlamaIndex keeps them. A `CDEVectorStore` is a collection of cde-rag: it also searches by words, and embeds each node
# given the others of its page.

# %%
from llama_index.core.node_parser import SentenceSplitter

splitter = SentenceSplitter(chunk_size=170, chunk_overlap=20)  # the bundled model reads 256 tokens
folder = Path(tempfile.mkdtemp())
store = CDEVectorStore.from_documents(documents, folder / "docs.faiss", transformations=[splitter])
index = VectorStoreIndex.from_vector_store(store, embed_model=store.embed_model)
retriever = index.as_retriever(vector_store_query_mode="hybrid", similarity_top_k=4)
for hit in retriever.retrieve("can colleagues already search while the first big import is running?"):
    print(f"{hit.score:.2f}  {hit.node.metadata['page']:26}  {' '.join(hit.node.text.split())[:70]}")

# %% [markdown]
# ## The language model
#
# Any of LlamaIndex, each in a package of its own; without one the passages are the answer.
#
# * `from llama_index.llms.ollama import Ollama; llm = Ollama("qwen3:8b")`
# * `from llama_index.llms.openai import OpenAI; llm = OpenAI("gpt-4.1-mini")`

# %%
llm = None

# %% [markdown]
# ## Chat
#
# The engine retrieves passages for every message and keeps the conversation; `source_nodes` are the citations. An
# engine in the mode "condense_plus_context" also rewrites a follow-up question before it retrieves: take it with a
# model that is good enough for that.

# %%
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.schema import NodeWithScore


def cited(found: list[NodeWithScore]) -> str:
    """The pages and beginnings of passages."""
    return "\n".join(
        f"  [{hit.node.metadata['page']}] {' '.join(hit.node.get_content().split())[:80]}" for hit in found
    )


messages = ["How do I give each customer separate data?", "Can vectors leak words of another customer?"]
if llm is None:
    for message in messages:
        print(f"> {message}\n{cited(retriever.retrieve(message))}\n")
else:
    chat = ContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, system_prompt="Answer in one or two sentences, from the passages only."
    )
    for message in messages:
        answer = chat.chat(message)
        print(f"> {message}\n{answer.response}\n{cited(answer.source_nodes)}\n")

# %% [markdown]
# ## Another process
#
# needs the folder. Model and context come with it.

# %%
store.collection.close()
store = CDEVectorStore.open(folder / "docs.faiss")
index = VectorStoreIndex.from_vector_store(store, embed_model=store.embed_model)
(hit,) = index.as_retriever(vector_store_query_mode="hybrid", similarity_top_k=1).retrieve("who may read a tenant?")
print(hit.node.metadata["page"])
store.collection.close()
