# %% [markdown]
# # A chatbot with LangChain
#
# Answer questions about a documentation by a chain, with citations and history, on this machine. The pages are those
# of cde-rag itself.

# %%
import tempfile
from pathlib import Path

from langchain_cde import CDEEmbeddings, CDEVectorStore
from langchain_core.documents import Document
from langchain_text_splitters import RecursiveCharacterTextSplitter

from cde_rag.evaluation.demo_corpus import demo_corpus

corpus = demo_corpus()
pages = [Document(text, metadata={"source": page}) for page, text in corpus.pages.items()]
splitter = RecursiveCharacterTextSplitter.from_language("markdown", chunk_size=700, chunk_overlap=100)
passages = splitter.split_documents(pages)
print(f"{len(pages)} pages, {len(passages)} passages")

# %% [markdown]
# ## The store
#
# It fits the context to the passages, and embeds each given the others of its `source`.

# %%
folder = Path(tempfile.mkdtemp())
store = CDEVectorStore.from_documents(passages, CDEEmbeddings(), store=folder / "docs.faiss")
retriever = store.as_retriever(search_type="hybrid", search_kwargs={"k": 4})  # by vectors and words together
for found in retriever.invoke("can colleagues already search while the first big import is running?"):
    print(f"{found.metadata['source']:26}  {' '.join(found.page_content.split())[:70]}")

# %% [markdown]
# ## The language model
#
# Any of LangChain, each in a package of its own; without one the passages are the answer.
#
# * `from langchain_ollama import ChatOllama; llm = ChatOllama(model="qwen3:8b")`
# * `from langchain_openai import ChatOpenAI; llm = ChatOpenAI(model="gpt-4.1-mini")`

# %%
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

llm = RunnableLambda(lambda _: AIMessage("These passages answer:"))

# %% [markdown]
# ## The chain

# %%
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnablePassthrough


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
for question in ["How do I give each customer separate data?", "Can vectors leak words of another customer?"]:
    done = chain.invoke({"question": question, "history": history})
    history += [HumanMessage(question), AIMessage(done["answer"])]
    print(f"> {question}\n{done['answer']}")
    for number, one in enumerate(done["found"], start=1):
        print(f"  [{number}] {one.metadata['source']}: {' '.join(one.page_content.split())[:80]}")
    print()

# %% [markdown]
# ## Another process
#
# needs the folder. Context and model come with it.

# %%
from cde_rag import Collection

store.collection.close()
store = CDEVectorStore(Collection.open(folder / "docs.faiss"))
print(store.hybrid_search("who may read a tenant?", k=1)[0].metadata["source"])
store.collection.close()
