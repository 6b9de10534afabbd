"""Keys of tenants: each reaches its own collection, and nothing of any other is in any answer."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import JSON, running, texts
from test_operation import process
from tiny import tiny_cde_model, tiny_network, tiny_tokenizer
from typer.testing import CliRunner

from cde_rag import CDEError, Context, ContextualEmbedder, Record, Tenants
from cde_rag.cli import app
from cde_rag.models import CDEModel
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.server.access import ApiKeys
from cde_rag.server.registry import Registry
from cde_rag.server.service import ServerOptions, Service
from cde_rag.server.token_batcher import TokenBatcher
from cde_rag.stores.faiss import FaissStore
from cde_rag.stores.tenant_stores import FolderTenants

SECRETS = {"acme": "river 7411", "globex": "river 9322"}  # a text of each, which the other may not read
KEYS = {"key-of-acme": "acme", "key-of-globex": "globex"}


def filled(folder: Path, model: CDEModel) -> Tenants:
    tenants = Tenants.create(FolderTenants(folder, FaissStore), ContextualEmbedder(model, Context.null(model)))
    for name, secret in SECRETS.items():
        with tenants.add(name) as own:
            own.add_records([Record("same", secret), *(Record(f"{name}{i}", text) for i, text in enumerate(texts(6)))])
    return tenants


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    tenants, batcher = filled(tmp_path / "app.faiss", tiny_cde_model()), TokenBatcher()
    options = ServerOptions(keys=ApiKeys(["key-of-all"], KEYS))
    own = {name: Service(Registry({"app": tenants.get(name)}, batcher), options) for name in SECRETS}
    with running(Service(Registry({}, batcher), options), own) as address:
        yield address


def client_of(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=60, trust_env=False, headers={"Authorization": f"Bearer {key}"})


def post(client: httpx.Client, path: str, body: Any) -> httpx.Response:
    return client.post(path, content=json.dumps(body), headers=JSON)


def test_a_key_reads_and_writes_its_own_tenant(url: str) -> None:
    for key, name in KEYS.items():
        with client_of(url, key) as client:
            found = post(client, "/v1/collections/app/search", {"query": "river", "k": 20}).json()
            assert {hit["id"] for hit in found["hits"]} <= {"same", *(f"{name}{i}" for i in range(6))}
            assert SECRETS[name] in {hit["text"] for hit in found["hits"]}
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["tiny@app"]
            assert post(client, "/v1/collections/app/records", {"records": [{"id": key, "text": "loan"}]}).is_success
    for key, other in (("key-of-acme", "key-of-globex"), ("key-of-globex", "key-of-acme")):
        with client_of(url, key) as client:
            there = [client.get("/v1/collections/app/records", params={"id": id_}).json() for id_ in (key, other)]
            assert [len(answer["records"]) for answer in there] == [1, 0]


def test_nothing_of_another_tenant_is_in_any_answer(url: str) -> None:
    with client_of(url, "key-of-globex") as other:
        job = post(other, "/v1/collections/app/recontextualize", {"seed": 1}).json()["id"]
    with client_of(url, "key-of-acme") as client:
        described = client.get("/openapi.json").json()["paths"]
        answers = [
            client.get(path.replace("{name}", "app").replace("{id}", job), params={"id": "same"})
            for path, methods in described.items()
            if "get" in methods
        ]
        assert len(answers) > 8
        assert sum(SECRETS["acme"] in answer.text for answer in answers) >= 2  # they do show what is acme's
        assert not any(SECRETS["globex"] in answer.text or "globex" in answer.text for answer in answers)
        assert client.get(f"/v1/jobs/{job}").status_code == 404
        assert client.post(f"/v1/jobs/{job}/cancel").status_code == 404
        assert client.get("/metrics").status_code == 403
        by_id = client.get("/v1/collections/app/records", params={"id": [f"globex{i}" for i in range(6)]})
        assert by_id.json()["records"] == []


def test_keys_of_all_and_of_nobody_reach_no_tenant(url: str) -> None:
    for key, status in (("key-of-all", 404), ("key-of-nobody", 401), ("acme", 401)):
        with client_of(url, key) as client:
            assert post(client, "/v1/collections/app/search", {"query": "river"}).status_code == status
    with client_of(url, "key-of-all") as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/ready").json()["models"] == 0


def test_ready_reads_the_collections_of_tenants_and_names_none(tmp_path: Path) -> None:
    tenants, batcher = filled(tmp_path / "app.faiss", tiny_cde_model()), TokenBatcher()
    options = ServerOptions(keys=ApiKeys([], KEYS))
    own = {name: Service(Registry({"app": tenants.get(name)}, batcher), options) for name in SECRETS}
    with running(Service(Registry({}, batcher), options), own) as url:
        assert httpx.get(f"{url}/ready", trust_env=False).json() == {"status": "ready", "models": 0, "pending": 0}
        store = tenants.get("globex").store
        assert isinstance(store, FaissStore)
        shutil.rmtree(store.folder)
        response = httpx.get(f"{url}/ready", trust_env=False)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "not_ready")
        assert not any(name in response.text for name in ("globex", "app.faiss"))


def test_keys_that_cannot_be() -> None:
    with pytest.raises(CDEError, match="given twice"):
        ApiKeys(["one"], {"one": "acme"})
    with pytest.raises(CDEError, match="given twice"):
        ApiKeys([], {"one": "acme", "one ": "globex"})
    with pytest.raises(CDEError, match="blank"):
        ApiKeys([], {" ": "acme"})


def test_the_command_serves_tenants(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    filled(tmp_path / "app.faiss", CDEModel.from_pretrained(folder)).close()
    keys = tmp_path / "keys.txt"
    keys.write_text("# of acme\nkey-of-acme acme\n\n  key-of-globex globex\n")
    arguments = (tmp_path / "app.faiss", "--tenant-key-file", keys, "--model", folder, "--llm", "none")
    with process(*arguments) as server:
        for key, name in KEYS.items():
            with client_of(server.url, key) as client:
                found = post(client, "/v1/collections/app/search", {"query": SECRETS[name], "k": 1}).json()
                assert [hit["text"] for hit in found["hits"]] == [SECRETS[name]]
        assert httpx.get(f"{server.url}/v1/models", trust_env=False).status_code == 401
        with client_of(server.url, "#") as client:
            assert client.get("/v1/models").status_code == 401
        assert not any(key in line for key in KEYS for line in server.lines)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("key", "keys.txt:1: expected 'KEY TENANT'"),
        ("key acme\nkey globex", "keys.txt:2: expected 'KEY TENANT'"),
        ("key nobody", "names 'nobody'"),
        (" ", "holds no API key"),
        ("# acme\n  # globex", "holds no API key"),
    ],
)
def test_a_file_of_keys_that_cannot_be_is_one_sentence(tmp_path: Path, line: str, message: str) -> None:
    folder = tmp_path / "tiny"
    checkpoints.write(folder, tiny_network(), tiny_tokenizer())
    filled(tmp_path / "app.faiss", CDEModel.from_pretrained(folder)).close()
    (tmp_path / "keys.txt").write_text(line)
    arguments = [str(tmp_path / "app.faiss"), "--tenant-key-file", str(tmp_path / "keys.txt"), "--model", str(folder)]
    done = CliRunner().invoke(app, ["serve", *arguments, "--port", "0"])
    assert done.exit_code != 0
    assert message in " ".join(done.output.split())
