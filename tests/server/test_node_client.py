"""OpenAI's client for Node and Vercel's AI SDK against the server."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_llm import fake_llm
from served import MODEL, Running, make, running, texts

from cde_rag.server.language_model import RemoteModel

PACKAGES = ("openai", "ai@6", "@ai-sdk/openai-compatible@2")
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

VERCELS = """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embed, embedMany, generateText, streamText } from "ai";
const [url, asked] = process.argv.slice(2);
const served = createOpenAICompatible({ name: "cde", baseURL: `${url}/v1`, includeUsage: true });
const given = { model: served("papers"), prompt: "Where does a river have a bank?", maxRetries: 0 };
const streamed = async () => {
  const errors = [];
  const answer = streamText({ ...given, onError: ({ error }) => errors.push(String(error.message ?? error)) });
  let text = "";
  for await (const part of answer.textStream) text += part;
  if (errors.length) return { text, errors };
  return { text, finish: await answer.finishReason, tokens: (await answer.usage).totalTokens };
};
const found = { streamed: await streamed() };
if (asked === "all") {
  const model = served.textEmbeddingModel("papers:document");
  const generated = await generateText(given);
  found.generated = { text: generated.text, finish: generated.finishReason };
  found.one = (await embed({ model, value: "river bank" })).embedding;
  found.many = (await embedMany({ model, values: ["river", "bank"] })).embeddings.length;
}
console.log(JSON.stringify(found));
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Script of OpenAI's client, beside Vercel's, in a folder with their packages from npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    (folder / "client.mjs").write_text(SCRIPT)
    (folder / "vercels.mjs").write_text(VERCELS)
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", *PACKAGES]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm install {' '.join(PACKAGES)} failed, as it does without a network: {error}")
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


def test_vercels_sdk_is_answered_and_notices_an_answer_that_breaks_off(client: Path, tmp_path: Path) -> None:
    def run(url: str, asked: str) -> Any:
        command = ["node", str(client.with_name("vercels.mjs")), url, asked]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    with fake_llm() as llm:
        llm.usage = {"prompt_tokens": 90, "completion_tokens": 7, "total_tokens": 97}
        service, embedder = make(tmp_path, language_model=RemoteModel(llm.url))
        with running(service) as url:
            found = run(url, "all")
            llm.finish = None
            broken = run(url, "stream")["streamed"]
    text = "Rivers have banks [1]."
    assert found["streamed"] == {"text": text, "finish": "stop", "tokens": 97}
    assert (found["generated"], found["many"]) == ({"text": text, "finish": "stop"}, 2)
    np.testing.assert_allclose(found["one"], embedder.embed_documents(["river bank"])[0], atol=1e-5)
    assert broken["text"] == text
    assert "broke off" in broken["errors"][0]
