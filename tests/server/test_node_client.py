"""OpenAI's client for Node against the server."""

import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from served import MODEL, Running, texts

SCRIPT = """
import OpenAI from "openai";
const [url, model, given] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const input = JSON.parse(given);
const documents = await client.embeddings.create({ model: `${model}:document`, input });
const floats = await client.embeddings.create({ model: `${model}:document`, input, encoding_format: "float" });
const models = [];
for await (const each of client.models.list()) models.push(each.id);
const hits = await client.vectorStores.search("papers", { query: "river", max_num_results: 3 });
const chat = await client.chat.completions.create({
  model: "papers", stream: true, messages: [{ role: "user", content: "river" }],
});
let answer = "";
for await (const part of chat) answer += part.choices[0]?.delta?.content ?? "";
let refused;
try { await client.embeddings.create({ model: "nobody:query", input: "river" }); } catch (error) { refused = error; }
console.log(JSON.stringify({
  documents: documents.data.map((each) => Array.from(each.embedding)),
  floats: floats.data.map((each) => each.embedding),
  models, hits: hits.data.length, answer, refused: [refused.status, refused.code],
}));
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the script and the package openai, from npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "client.mjs").write_text(SCRIPT)
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", "openai"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm install openai failed, as it does without a network: {error}")
    return folder / "client.mjs"


def test_the_client_of_node_gets_the_librarys_vectors(client: Path, server: Running) -> None:
    some = texts(5)
    done = subprocess.run(
        ["node", str(client), server.url, MODEL, json.dumps(some)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    expected = server.embedder.embed_documents(some)
    np.testing.assert_allclose(np.array(found["documents"], np.float32), expected, atol=1e-5)  # it asks for base64
    np.testing.assert_allclose(np.array(found["floats"], np.float32), expected, atol=1e-5)
    assert MODEL in found["models"]
    assert found["hits"] == 3
    assert "river" in found["answer"]
    assert found["refused"] == [404, "model_not_found"]
