"""The line that names the new model is that of the framework whose rows a store has."""

from pathlib import Path
from typing import Any

import psycopg
import pytest
from applications import stub
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.utils import node_to_metadata_dict
from plain_model import write_static

from cde_rag import ContextualEmbedder, PlainEmbedder
from cde_rag.adoption.application_lines import ANY, CHROMA, LANGCHAIN, LLAMA_INDEX, model_line
from cde_rag.adoption.audit_sources import source_of
from cde_rag.adoption.chroma_function import CDEFunction

VECTOR = [0.5] * 16
NODE = TextNode(text="a river bank", id_="8c7a1a2e-8a50-4a2a-9a35-0d5c2f1b7e11", metadata={"file": "a.md"})
PAYLOADS: dict[str, dict[str, Any]] = {  # as the stores of both frameworks write them
    "llamaindex": node_to_metadata_dict(NODE, remove_text=False, flat_metadata=False),
    "langchain": {"page_content": NODE.text, "metadata": {"file": "a.md"}},
}


def qdrant(folder: Path, kind: str) -> str:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder))
    client.create_collection("papers", models.VectorParams(size=16, distance=models.Distance.COSINE))
    client.upsert("papers", [models.PointStruct(id=NODE.node_id, vector=VECTOR, payload=PAYLOADS[kind])])
    client.close()
    return f"qdrant:{folder}#papers"


def lancedb(folder: Path, kind: str) -> str:
    import lancedb  # its import takes seconds

    metadata = PAYLOADS[kind] if kind == "llamaindex" else {"file": "a.md"}
    row = {"id": "a", "vector": VECTOR, "text": NODE.text, "metadata": {**metadata, "n": 1}}
    lancedb.connect(str(folder)).create_table("papers", [row])
    return f"lancedb:{folder}#papers"


def chroma(folder: Path, kind: str) -> str:
    import chromadb

    flat = {key: value for key, value in PAYLOADS[kind].items() if isinstance(value, str)}
    made = chromadb.PersistentClient(path=str(folder)).create_collection("papers", embedding_function=None)
    made.add(ids=["a"], documents=[NODE.text], embeddings=[VECTOR], metadatas=[flat])
    return f"chroma:{folder}#papers"


@pytest.mark.parametrize("kind", ["llamaindex", "langchain"])
@pytest.mark.parametrize("store", [qdrant, lancedb, chroma])
def test_a_store_of_nodes_gets_the_line_of_llamaindex(
    store: Any, kind: str, tmp_path: Path, prefixed: ContextualEmbedder
):
    with source_of(store(tmp_path / "data", kind)) as source:
        line = source.line(prefixed, Path("a.context.safetensors"))
    begins = {
        "llamaindex": 'Settings.embed_model = CDEEmbedding.load("a.context.safetensors")  # from llama_index',
        "langchain": 'embeddings = CDEEmbeddings.load("a.context.safetensors")  # from langchain_cde',
    }
    assert line.startswith(begins[kind])


def test_a_table_of_nodes_gets_the_line_of_llamaindex(postgres: str, prefixed: ContextualEmbedder):
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute(
            "CREATE EXTENSION IF NOT EXISTS vector; DROP TABLE IF EXISTS data_lines; CREATE TABLE data_lines ("
            "id bigserial PRIMARY KEY, text varchar, metadata_ json, node_id varchar, embedding vector(16))"
        )
    with source_of(f"pgvector:{postgres}#data_lines") as source:
        line = source.line(prefixed, Path("a.context.safetensors"))
    assert line.startswith('Settings.embed_model = CDEEmbedding.load("a.context.safetensors")')
    assert "and embedding has 24 numbers" in line


def test_a_line_loads_the_model(tmp_path: Path, prefixed: ContextualEmbedder):
    static, file = PlainEmbedder(write_static(tmp_path / "static")), tmp_path / "a.context.safetensors"
    folder = str(tmp_path / "static")
    native = f'embeddings = HuggingFaceEmbeddings(model_name="{folder}")'
    assert model_line(static, file, LANGCHAIN) == native
    note = "in LangChain; else the same model in your own code; and more"
    assert model_line(static, file, ANY, "and more") == f"{native}  # {note}"
    theirs = f'Settings.embed_model = HuggingFaceEmbedding(model_name="{folder}")'
    assert model_line(static, file, LLAMA_INDEX) == theirs
    prefixed.context.save(file)
    code, _, comment = model_line(prefixed, file, CHROMA).partition("  # ")
    assert comment == "from cde_rag.adoption.chroma_function"
    made = eval(code.removeprefix("client.get_collection(…, embedding_function=")[:-1], {"CDEFunction": CDEFunction})
    assert made.get_config()["fingerprint"] == prefixed.fingerprint


def test_a_line_is_python_for_any_path(prefixed: ContextualEmbedder):
    for path in (r"C:\new\table\a.ctx", 'the "new" one/a.ctx', "größer/a {b}.ctx"):
        code = model_line(prefixed, Path(path), LANGCHAIN).removeprefix("embeddings = CDEEmbeddings.load")
        assert eval(code) == path


def test_a_model_of_an_api_is_named_by_its_address(tmp_path: Path):
    """A Context has no address: the line of a file alone would not load."""
    served = stub("nomic-embed-text", 16)
    line = model_line(served, tmp_path / "a", LLAMA_INDEX)
    assert 'CDEEmbedding.load("' in line
    assert ', model_name="ADDRESS#nomic-embed-text")' in line
    assert "openai:nomic-embed-text" in line
    assert ', model="ADDRESS#nomic-embed-text")' in model_line(served, tmp_path / "a", LANGCHAIN)
