"""Models by hub id, through huggingface_hub itself, against a hub on this machine.

Contract: only config, weights and tokenizer are ever asked for; what was loaded once loads without network; a name in a
manifest is pinned to a commit; every refusal says what to do.
"""

import os
import subprocess
import sys
import time
from unittest import mock

import numpy as np
import pytest
from fake_hub import FakeHub
from golden import V1, V2, tokenizer_json, write_folder
from plain_model import write_static, write_transformer
from plain_replicas import write_encoder, write_router, write_table

from cde_rag import CDEModel, ContextualEmbedder, EmbedderOptions, PlainEmbedder
from cde_rag.errors import MissingExtraError, ModelError
from cde_rag.models.files import weights
from cde_rag.models.named import named_model

pytestmark = [pytest.mark.usefixtures("tiny_backbones"), pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")]
REPOSITORY = "somebody/tiny"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    fake = FakeHub(tmp_path / "hub")
    write_folder(fake.root / REPOSITORY, V2)
    (fake.root / REPOSITORY / "model.py").write_text("raise SystemExit('remote code')")
    (fake.root / REPOSITORY / "pytorch_model.bin").write_bytes(b"pickle")
    (fake.root / REPOSITORY / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["model.T", null]}}')
    monkeypatch.setattr(constants, "ENDPOINT", fake.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield fake
    fake.close()


def load(name=REPOSITORY, **options):
    return CDEModel.from_pretrained(name, device="cpu", dtype="float32", **options)


def test_a_hub_id_is_a_model(hub):
    model = load()
    assert model.identity.name == f"{REPOSITORY}@{hub.commit(REPOSITORY)}"
    fetched = {path.rsplit("/", 1)[1] for path in hub.asked if "/resolve/" in path}
    assert fetched == {"config.json", "model.safetensors", "tokenizer.json"}
    folder = load(hub.root / REPOSITORY)
    assert folder.identity.weights_sha256 == model.identity.weights_sha256
    embedder = ContextualEmbedder.from_corpus(["a river", "a bank"], model=model)
    assert ContextualEmbedder(folder, embedder.context).fingerprint == embedder.fingerprint


def test_without_network_from_the_cache(hub):
    exact = load().identity
    hub.close()
    assert load().identity == exact
    assert load(exact.name).identity == exact


def test_a_pinned_name_asks_nobody(hub):
    name = load().identity.name
    hub.asked.clear()
    load(name)
    load(REPOSITORY, revision=hub.commit(REPOSITORY))
    assert hub.asked == []


def test_without_network_and_cache(hub):
    hub.close()
    with pytest.raises(ModelError, match=r"not in the cache, and the hub could not be reached .*cde-rag convert"):
        load()


def test_offline_mode(hub, monkeypatch):
    from huggingface_hub import constants

    exact = load().identity
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load().identity == exact
    with pytest.raises(ModelError, match="not in the cache"):
        load("somebody/other")
    assert hub.asked == []


def test_an_interrupted_download_is_no_cached_model(hub, tmp_path):
    load()
    for path in (tmp_path / "cache").rglob("model.safetensors"):
        path.unlink()
    hub.close()
    with pytest.raises(ModelError, match="not in the cache"):
        load()


@pytest.mark.parametrize("shards", [1, 3])
def test_other_content_than_the_hub_says_is_refused_and_forgotten(hub, shards):
    folder = write_folder(hub.root / "somebody/flipped", V1, shards=shards)
    name = sorted(folder.glob("*.safetensors"))[0].name
    whole = (folder / name).read_bytes()
    hub.sent[name] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(ModelError, match=rf"names sha256 .* for {name}, found .*is forgotten; run again"):
        load("somebody/flipped")
    hub.sent.clear()
    assert load("somebody/flipped").identity.weights_sha256 == load(folder).identity.weights_sha256


def test_a_download_that_breaks_off_is_no_model(hub):
    """The client asks again some times; each answer ends too early."""
    hub.sent["model.safetensors"] = (hub.root / REPOSITORY / "model.safetensors").read_bytes()[:1000]
    with pytest.raises(ModelError, match="not in the cache, and the hub could not be reached"):
        load()
    hub.sent.clear()
    assert load().identity.weights_sha256 == load(hub.root / REPOSITORY).identity.weights_sha256


def test_a_config_of_another_model_is_refused(hub):
    write_folder(hub.root / "somebody/wrong", V2, embedder="gpt2")
    with pytest.raises(ModelError, match=r"Expected the backbone .*found 'gpt2'"):
        load("somebody/wrong")


def test_shards(hub, tmp_path):
    write_folder(hub.root / "somebody/parts", V1, shards=3)
    parts = load("somebody/parts")
    hub.close()
    assert load("somebody/parts").identity == parts.identity
    next((tmp_path / "cache").rglob("model-00002-of-00003.safetensors")).unlink()
    with pytest.raises(ModelError, match="not in the cache"):
        load("somebody/parts")


@pytest.mark.parametrize(
    ("name", "options"),
    [("somebody/nothing", {}), (REPOSITORY, {"revision": "v9"}), ("a/b--c", {}), ("a/b--c", {"revision": "0" * 40})],
)
def test_no_such_model_or_revision(hub, name, options):
    with pytest.raises(ModelError, match=r"Expected the model .* on the hub, found: .*Check the name"):
        load(name, **options)


def test_private_models_need_a_token(hub):
    hub.private[REPOSITORY] = "hf_secret"
    with pytest.raises(ModelError, match="token="):
        load()
    model = load(token="hf_secret")
    assert "secret" not in repr(model.identity)


def test_pickle_only_is_refused_with_the_reason(hub):
    (hub.root / REPOSITORY / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"found only pytorch_model\.bin\. Pickle files can run code"):
        load()
    assert not any("/resolve/" in path for path in hub.asked)


def test_sizes_are_bounded_before_anything_is_downloaded(hub):
    hub.sizes["model.safetensors"] = weights.MAX_BYTES["model.safetensors"] + 1
    with pytest.raises(ModelError, match=r"model\.safetensors: expected at most"):
        load()
    assert not any("/resolve/" in path for path in hub.asked)


def test_tokenizer_of_the_backbone_where_the_model_has_none(hub):
    (hub.root / REPOSITORY / "tokenizer.json").unlink()
    with pytest.raises(
        ModelError, match=r"has no tokenizer\.json, and that of its backbone answerdotai/ModernBERT-base"
    ):
        load()
    own = hub.root / "answerdotai/ModernBERT-base"
    own.mkdir(parents=True)
    (own / "tokenizer.json").write_text(tokenizer_json())
    model = load()
    hub.close()
    assert load().identity == model.identity


def test_a_revision_is_for_the_hub(hub):
    with pytest.raises(ModelError, match="A revision is for models of the hub"):
        load(hub.root / REPOSITORY, revision="main")


def test_name_and_argument_disagree():
    with pytest.raises(ModelError, match="The name specifies revision 'a', the argument for 'b'"):
        load("somebody/tiny@a", revision="b")


@pytest.mark.parametrize("options", ["?colour=red", "?context_size=many", "?semantics"])
def test_unknown_options_of_a_name(options):
    with pytest.raises(ModelError, match="options"):
        load(REPOSITORY + options)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"cde-rag\[hub\]"):
        load()


def test_a_plain_model(hub):
    write_static(hub.root / "somebody" / "static")
    plain = PlainEmbedder("somebody/static", options=EmbedderOptions(device="cpu"))
    assert plain.context.identity.name == f"somebody/static@{hub.commit('somebody/static')}"
    assert (
        plain.fingerprint
        == PlainEmbedder(hub.root / "somebody" / "static", options=EmbedderOptions(device="cpu")).fingerprint
    )
    with pytest.raises(ModelError, match="nor on the hub"):
        PlainEmbedder("somebody/nothing")
    hub.close()
    assert (
        PlainEmbedder(plain.context.identity.name, options=EmbedderOptions(device="cpu")).context.identity
        == plain.context.identity
    )
    assert (
        PlainEmbedder("somebody/static", options=EmbedderOptions(device="cpu")).context.identity
        == plain.context.identity
    )


@pytest.mark.parametrize("kind", ["published", "encoder", "table"])
def test_a_name_of_any_family_asks_for_each_file_once(hub, kind, monkeypatch):
    """Also of a table, which has no config beside its modules; and nothing waits for a hub that is out of reach."""
    name = REPOSITORY if kind == "published" else f"somebody/{kind}"
    if kind == "encoder":
        write_transformer(hub.root / name)
    elif kind == "table":
        write_table(hub.root / name)
        (hub.root / name / "config.json").unlink(missing_ok=True)
    model = named_model(name, device="cpu", dtype="float32", runtime="torch")
    assert model.identity.name == f"{name}@{hub.commit(name)}"
    fetched = [path for path in hub.asked if path.startswith("GET") and "/resolve/" in path]
    assert len(fetched) == len(set(fetched))
    hub.close()
    monkeypatch.setattr(time, "sleep", mock.Mock(side_effect=AssertionError("the client would try again")))
    assert named_model(name, device="cpu", dtype="float32", runtime="torch").identity == model.identity
    with pytest.raises(ModelError, match="not in the cache, and the hub could not be reached"):
        named_model(f"somebody/other-{kind}")


WITHOUT_TORCH = """
import sys
import time
from unittest import mock
for name in ("torch", "transformers", "sentence_transformers"):
    sys.modules[name] = None
from cde_rag import ContextualEmbedder, EmbedderOptions
from cde_rag.embedders.corpus_contexts import first_context
from cde_rag.models.named import named_model
for name in sys.argv[1:]:
    model = named_model(name, runtime="onnx")
    plain = ContextualEmbedder(model, first_context(model))
    print(plain.context.identity.name, plain.fingerprint, *plain.embed_queries(["the river bank"])[0].tolist())
"""


def test_plain_models_of_a_mirror_without_torch(hub, tmp_path):
    """A process whose hub is a mirror, and which has neither torch nor transformers nor sentence-transformers."""
    write_encoder(hub.root / "somebody/dense", "modernbert", "dense")
    write_router(hub.root / "somebody/asymmetric", table=True)
    write_transformer(hub.root / "somebody/bert")
    (hub.root / "somebody/dense/modeling.py").write_text("raise SystemExit('remote code')")
    places = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    places["HF_HUB_OFFLINE"] = "0"  # also where this process must not ask a hub
    names = ["somebody/dense", "somebody/asymmetric", "somebody/bert"]
    command = [sys.executable, "-c", WITHOUT_TORCH, *names]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places}, timeout=500)
    assert result.returncode == 0, result.stderr
    for name, line in zip(names, result.stdout.splitlines(), strict=True):
        found, fingerprint, *vector = line.split()
        folder = PlainEmbedder(hub.root / name, options=EmbedderOptions(device="cpu"))
        assert found == f"{name}@{hub.commit(name)}"
        assert fingerprint == folder.fingerprint
        np.testing.assert_allclose(np.array(vector, float), folder.embed_queries(["the river bank"])[0], atol=1e-5)
    assert not any("modeling.py" in path for path in hub.asked)
