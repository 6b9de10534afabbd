"""Families of plain models without torch: vectors are those of sentence-transformers in every runtime, for every
architecture, pooling and head, texts of all lengths, both roles, and any batch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_replicas import (
    HEADS,
    LIMIT,
    ROLES,
    TEXT,
    write_encoder,
    write_parts,
    write_replica,
    write_router,
    write_table,
)
from safetensors.numpy import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from tiny import WORDS
from tokenizers import Tokenizer

from cde_rag import CDEModel, Collection, EmbedderOptions, PlainEmbedder
from cde_rag.embedders.contextual import ContextualEmbedder
from cde_rag.errors import CDEWarning, ModelError, TruncationWarning
from cde_rag.models.plain.checkpoint import ModelFiles
from cde_rag.models.plain.config import TextEncoder
from cde_rag.models.plain.prompts import prefixes_of
from cde_rag.models.runtimes import runtime_choice

pytest.importorskip("onnx")
pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.TruncationWarning")
SAME = 0.99999  # cosine, at least, of two computations in float32
RUNTIMES = ("openvino", "onnx")
FEW = ("mean", "cls", "lasttoken", "denses", "weights")
CASES = [("bert", head) for head in HEADS] + [
    (architecture, head) for architecture in ("roberta", "xlm-roberta", "modernbert") for head in FEW
]


def texts(count: int, *, longest: int = 3 * LIMIT) -> list[str]:
    """Texts of all lengths, from a word to one that is cut, and some that are odd."""
    random = np.random.default_rng(0)
    lengths = np.unique(np.geomspace(1, longest, count).astype(int)).tolist()
    found = [" ".join(random.choice(WORDS, length)) for length in (lengths * 9)[:count]]
    odd = [
        "x",
        ".",
        "É naïve 東京",
        "  the   river\n bank ",
        "[MASK] <mask>",
        "the <pad><pad> river</s> bank",
        "a" * 300,
        f"{TEXT} " * 480,
    ]
    return [*found, *odd]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def options(runtime: str, **others: Any) -> EmbedderOptions:
    return EmbedderOptions(runtime=runtime, device="cpu", **others)


def assert_same(found: np.ndarray, expected: np.ndarray, at_least: float = SAME) -> None:
    found, expected = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (found, expected))
    cosines = (found * expected).sum(axis=1)
    assert cosines.min() >= at_least, (cosines.argmin(), cosines.min())


def assert_those_of_sentence_transformers(folder: Path, runtime: str, some: list[str]) -> ContextualEmbedder:
    """Compare both roles, in batches and alone, truncation and the identity."""
    peer = SentenceTransformer(str(folder), device="cpu")
    plain = PlainEmbedder(folder, options=options(runtime, mini_batch_size=5))
    assert plain.runtime == runtime
    documents, queries = plain.embed_documents(some), plain.embed_queries(some)
    np.testing.assert_allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    assert_same(documents, peer.encode_document(some, batch_size=7))
    assert_same(queries, peer.encode_query(some, batch_size=4))
    assert np.abs(documents - queries).max() > 1e-2  # prompts act
    assert (documents @ documents.T).min() < 0.95  # and texts
    assert_same(np.concatenate([plain.embed_documents([text]) for text in some[::5]]), documents[::5])
    torch = PlainEmbedder(folder, options=options("torch"))
    assert torch.context.identity == plain.context.identity
    np.testing.assert_array_equal(
        plain.embed_passages(some, None).truncated, torch.embed_passages(some, None).truncated
    )
    return plain


@pytest.mark.parametrize(("architecture", "head"), CASES)
def test_encoders(tmp_path: Path, architecture: str, head: str) -> None:
    folder = write_encoder(tmp_path / "model", architecture, head)
    for runtime in RUNTIMES:
        plain = assert_those_of_sentence_transformers(folder, runtime, texts(40))
        assert plain.context.identity.prefixes == ROLES
        assert plain.context.identity.max_length == LIMIT


PUBLISHED: dict[str, tuple[str, str, dict[str, Any]]] = {  # sizes: leaf-ir, arctic-m, granite-30m, granite-small-r2
    "leaf": ("bert", "dense", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
    "arctic-m": ("bert", "cls", {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}),
    "granite-30m": ("roberta", "cls", {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}),
    "e5-base": ("xlm-roberta", "mean", {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 3072}),
    "granite-small-r2": (
        "modernbert",
        "cls",
        {
            "hidden_size": 384,
            "num_hidden_layers": 12,
            "intermediate_size": 1536,
            "local_attention": 128,
            "max_position_embeddings": 8192,
        },
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(tmp_path: Path, name: str, runtime: str) -> None:
    architecture, head, sizes = PUBLISHED[name]
    limit = 2048 if architecture == "modernbert" else 512
    positions = {} if architecture == "modernbert" else {"max_position_embeddings": limit + 2}
    some = {"num_attention_heads": 12, "initializer_range": 0.06, **positions, **sizes}
    folder = write_encoder(tmp_path / "model", architecture, head, limit=limit, **some)
    assert_those_of_sentence_transformers(folder, runtime, texts(191, longest=3 * limit))


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[TextEncoder, Any]]:
    """Tokenizers of ours and of sentence-transformers, by architecture."""
    root, found = tmp_path_factory.mktemp("tokenizers"), dict[str, tuple[TextEncoder, Any]]()
    for architecture in ("roberta", "xlm-roberta", "modernbert"):
        folder = write_encoder(root / architecture, architecture, "mean")
        encoder = TextEncoder.read(ModelFiles.find(str(folder)))
        found[architecture] = encoder, SentenceTransformer(str(folder), device="cpu").tokenizer
    return found


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    architecture=st.sampled_from(["roberta", "xlm-roberta", "modernbert"]),
    text=st.text(min_size=1).filter(str.strip)
    | st.lists(
        st.sampled_from(["<mask>", " <mask> ", "[MASK] ", "<s>", "<pad>", "É", "e\u0301", "  ", "\n", "river", "東京"])
    ).map("".join),
)
def test_tokens(tokenizers: dict[str, tuple[TextEncoder, Any]], architecture: str, text: str) -> None:
    encoder, peer = tokenizers[architecture]
    text = f"{text} ."
    assert encoder.tokenizer([text], LIMIT)[0].ids == peer(text, truncation=True, max_length=LIMIT)["input_ids"]


@pytest.fixture
def by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime is not named by the environment."""
    monkeypatch.delenv(runtime_choice.VARIABLE)


def model2vec(folder: Path) -> None:
    """Write the table as model2vec does after a quantisation of its vocabulary: with a mapping and weights."""
    (path,) = folder.glob("**/model.safetensors")
    table = load_file(path)["embedding.weight"]
    random = np.random.default_rng(0)
    mapping, weights = random.integers(0, 40, 64), random.random(64)
    save_file({"embeddings": table[:40].astype(np.float16), "mapping": mapping, "weights": weights}, path)


@pytest.mark.usefixtures("by_itself")
@pytest.mark.parametrize("kind", ["plain", "with modules", "model2vec", "truncated"])
def test_static_tables_take_numpy(tmp_path: Path, kind: str) -> None:
    then = [Dense(16, 8), Normalize()] if kind == "with modules" else [Normalize()] if kind == "model2vec" else []
    folder = write_table(tmp_path / "model", then=then)
    (tokenizer,) = folder.glob("**/tokenizer.json")
    if kind == "model2vec":
        model2vec(folder)
    if kind == "truncated":
        limit = {"direction": "Right", "max_length": 6, "strategy": "LongestFirst", "stride": 0}
        tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"truncation": limit}))
    some = [text for text in texts(200) if set(text) & set("abcdefghilmnoprst")]
    plain = assert_those_of_sentence_transformers(folder, "numpy", some)
    assert plain.context.identity.max_length == 0
    tokens = Tokenizer.from_file(str(tokenizer))
    tokens.no_truncation()
    prefix = plain.context.identity.prefixes["document"]
    cut = [kind == "truncated" and len(tokens.encode(prefix + text, add_special_tokens=False).ids) > 6 for text in some]
    assert any(cut) == (kind == "truncated")
    assert plain.embed_passages(some, None).truncated.tolist() == cut
    if kind == "truncated":
        said = f"{sum(cut)} of {len(some)} texts exceed the limit of tokens in the tokenizer's file"
        with pytest.warns(TruncationWarning, match=said):
            plain.embed_documents(some)
    assert PlainEmbedder(folder).runtime == "numpy"
    assert plain.count_tokens(some) == PlainEmbedder(folder, options=options("torch")).count_tokens(some)
    for refused in ("openvino", "onnx"):
        with pytest.raises(ModelError, match=f"needs no '{refused}'"):
            PlainEmbedder(folder, options=options(refused))
    assert PlainEmbedder(folder, options=EmbedderOptions(dtype="bfloat16")).runtime == "torch"
    with pytest.raises(ModelError, match="reads texts of any length, found max_length 9"):
        PlainEmbedder(folder, max_length=9)


def test_numpy_runs_no_encoder(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "model", "bert", "mean")
    with pytest.raises(ModelError, match="'numpy' runs static tables alone"):
        PlainEmbedder(folder, options=options("numpy"))
    with pytest.raises(ModelError, match="'numpy' runs static tables alone"):
        CDEModel.from_pretrained("cde-mini-1", runtime="numpy")


@pytest.mark.usefixtures("by_itself")
@pytest.mark.parametrize("table", [False, True])
def test_routers(tmp_path: Path, table: bool) -> None:
    """Queries have a way of their own, with its own limit and tokenizer."""
    folder = write_router(tmp_path / "model", table=table)
    some = [text for text in texts(40) if set(text) & set("abcdefghilmnoprst")]
    for runtime in ("openvino", "onnx", "torch"):
        plain = assert_those_of_sentence_transformers(folder, runtime, some)
        assert plain.context.identity.max_length == LIMIT
    windowed = PlainEmbedder(folder, windows=True, options=options("onnx"))
    assert_same(windowed.embed_documents(some[:9]), plain.embed_documents(some[:9]))
    papers = Collection.create(tmp_path / "papers", PlainEmbedder(folder, options=options("onnx")))
    papers.add(some)
    with Collection.open(tmp_path / "papers", options=options("torch")) as again:
        assert [hit.id for hit in again.search("a river", 5)] == [hit.id for hit in papers.search("a river", 5)]
    papers.close()


def test_a_router_without_a_way_for_queries(tmp_path: Path) -> None:
    folder = write_router(tmp_path / "model", table=True)
    path = folder / "router_config.json"
    value = json.loads(path.read_text())
    value["structure"]["other"] = value["structure"].pop("query")
    path.write_text(json.dumps(value))
    with pytest.raises(ModelError, match=r"no way of a query in router_config\.json"):
        PlainEmbedder(folder, options=options("onnx"))


def test_documents_and_queries_of_two_models(tmp_path: Path) -> None:
    documents = write_encoder(tmp_path / "documents", "bert", "mean")
    queries = write_encoder(tmp_path / "queries", "modernbert", "cls")
    both = PlainEmbedder(documents, query_model=queries, options=options("onnx"))
    one, other = (PlainEmbedder(folder, options=options("onnx")) for folder in (documents, queries))
    some = texts(9)
    np.testing.assert_allclose(both.embed_documents(some), one.embed_documents(some), atol=1e-6)
    np.testing.assert_allclose(both.embed_queries(some), other.embed_queries(some), atol=1e-6)
    assert len({each.fingerprint for each in (both, one, other)}) == 3
    turned = PlainEmbedder(queries, query_model=documents, options=options("onnx"))
    assert turned.fingerprint != both.fingerprint
    papers = Collection.create(tmp_path / "papers", both)
    papers.add(some)
    with Collection.open(tmp_path / "papers", options=options("torch")) as again:
        assert again.embedder.fingerprint == both.fingerprint
        assert again.search("a river", 3)[0].id == papers.search("a river", 3)[0].id
    papers.close()
    shorter = write_table(tmp_path / "shorter", dim=8)
    with pytest.raises(ModelError, match=r"one length for documents and queries, found 16 by .* and 8 by"):
        PlainEmbedder(documents, query_model=shorter, options=options("onnx"))
    with pytest.raises(ModelError, match="one query_model"):
        PlainEmbedder(both.context.identity.name, query_model=queries)


UNKNOWN = {  # files, and a setting of each that nobody knows
    "config.json": "in config.json",
    "config_sentence_transformers.json": "in config_sentence_transformers.json",
    "sentence_bert_config.json": "in sentence_bert_config.json",
    "tokenizer_config.json": "the tokenizer's settings",
    "1_Pooling/config.json": "in 1_Pooling/config.json",
    "2_Dense/config.json": "in 2_Dense/config.json",
    "3_Normalize/config.json": "in 3_Normalize/config.json",
}


def test_unknown_settings_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "model", "modernbert", "dense")
    for name, place in UNKNOWN.items():
        before = (folder / name).read_text()
        (folder / name).write_text(json.dumps(json.loads(before) | {"turned_by": 7}))
        with pytest.raises(ModelError, match=f"found .*turned_by.*{place}|turned_by 7 {place}"):
            PlainEmbedder(folder, options=options("onnx"))
        (folder / name).write_text(before)
    PlainEmbedder(folder, options=options("onnx"))


ODD: dict[str, tuple[str, str, Any, str]] = {  # architecture, file, settings (or the modules' names), what is named
    "no mask": ("bert", "tokenizer_config.json", {"model_input_names": ["input_ids"]}, "model_input_names"),
    "layers": ("bert", "config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000"),
    "layers of ModernBERT": ("modernbert", "config.json", {"num_hidden_layers": 10**9, "layer_types": None}, "layers"),
    "no tokens": ("bert", "sentence_bert_config.json", {"max_seq_length": 0}, "at most 0 tokens"),
    "less": ("modernbert", "sentence_bert_config.json", {"max_seq_length": -1}, "at most -1 tokens"),
    "endless": ("modernbert", "sentence_bert_config.json", {"max_seq_length": 10**30}, "at most 1000"),
    "a half": ("bert", "sentence_bert_config.json", {"max_seq_length": 12.5}, "max_seq_length 12.5"),
    "true tokens": ("bert", "sentence_bert_config.json", {"max_seq_length": True}, "max_seq_length True"),
    "one true layer": ("bert", "config.json", {"num_hidden_layers": True}, "num_hidden_layers True"),
    "nothing left": ("bert", "config_sentence_transformers.json", {"truncate_dim": False}, "truncate_dim False"),
    "kind": ("bert", "config_sentence_transformers.json", {"model_type": None}, "model_type None"),
    "modules": ("bert", "modules.json", ["0", "0"], "modules of one name"),
}


@pytest.mark.parametrize("case", ODD)
def test_settings_that_change_vectors_or_have_no_end_are_refused_by_name(tmp_path: Path, case: str) -> None:
    architecture, name, change, found = ODD[case]
    folder = write_encoder(tmp_path / "model", architecture, "mean")
    path = folder / name
    value = json.loads(path.read_text())
    if isinstance(value, list):
        path.write_text(json.dumps([{**each, "name": name} for each, name in zip(value, change, strict=True)]))
    else:
        path.write_text(json.dumps(value | change))
    with pytest.raises(ModelError, match=f"found .*{found}"):
        PlainEmbedder(folder, options=options("onnx"))


@pytest.mark.parametrize(
    ("name", "setting", "found"),
    [
        (
            "config_sentence_transformers.json",
            {"truncate_dim": False},
            "1 number or more, found a truncate_dim of False",
        ),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "1 number or more, found a truncate_dim of 0"),
        ("sentence_bert_config.json", {"max_seq_length": True}, "1 token or more, found a max_seq_length of True"),
    ],
)
def test_true_and_false_are_no_sizes_in_torch(tmp_path: Path, name: str, setting: dict[str, Any], found: str) -> None:
    """sentence-transformers takes them for 1 and 0, and makes vectors of no numbers."""
    folder = write_encoder(tmp_path / "model", "bert", "mean")
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(ModelError, match=found):
        PlainEmbedder(folder, options=options("torch"))


def test_a_link_to_a_file_that_is_not_there_is_no_missing_setting(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "model", "bert", "mean")
    (folder / "README.md").symlink_to(tmp_path / "gone")  # which no vector depends on
    assert PlainEmbedder(folder, options=options("onnx")).context.identity.prefixes == ROLES
    prompts = folder / "config_sentence_transformers.json"
    prompts.unlink()
    prompts.symlink_to(tmp_path / "gone")
    with pytest.raises(ModelError, match=r"config_sentence_transformers\.json is a link to a file that is not there"):
        PlainEmbedder(folder, options=options("onnx"))


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_vectors_that_are_no_numbers(tmp_path: Path, kind: str) -> None:
    folder = write_table(tmp_path / "m") if kind == "static" else write_encoder(tmp_path / "m", kind, "mean")
    (path,) = folder.glob("**/model.safetensors")
    state = {name: value.copy() for name, value in load_file(path).items()}
    next(value for name, value in state.items() if name.endswith(("embedding.weight", "word_embeddings.weight")))[:] = (
        np.inf
    )
    save_file(state, path, {"format": "pt"})
    plain = PlainEmbedder(folder, options=options("numpy" if kind == "static" else "onnx"))
    with pytest.raises(ModelError, match="makes vectors that are no numbers, in float32"):
        plain.embed_documents([TEXT])


CONFIGS: dict[str, dict[str, Any]] = {
    "relu": {"hidden_activation": "relu"},
    "norm_bias": {"norm_bias": True},
    "layer_types": {"layer_types": ["full_attention"]},
    "rope_type": {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
    "qwen3": {"model_type": "qwen3"},
}


@pytest.mark.parametrize("found", CONFIGS)
def test_encoders_that_no_graph_expresses(tmp_path: Path, found: str) -> None:
    folder = write_encoder(tmp_path / "model", "modernbert", "mean")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | CONFIGS[found]))
    with pytest.raises(ModelError, match=f"found .*{found}"):
        PlainEmbedder(folder, options=options("onnx"))


@pytest.mark.parametrize(
    ("name", "query", "document"),
    [
        ("BAAI/bge-small-en-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("intfloat/multilingual-e5-small", "query: ", "passage: "),
        ("nomic-ai/modernbert-embed-base", "search_query: ", "search_document: "),
        ("Snowflake/snowflake-arctic-embed-m-v1.5", "Represent this sentence for searching relevant passages: ", ""),
        ("Snowflake/snowflake-arctic-embed-l-v2.0", "query: ", ""),
        ("BAAI/bge-m3", "", ""),
        ("thenlper/gte-small", "", ""),
    ],
)
def test_prompts_of_known_models(name: str, query: str, document: str) -> None:
    none = {"query": "", "document": ""}
    assert prefixes_of(f"{name}@{'0' * 40}", none) == {"query": query, "document": document}
    assert prefixes_of(name, {**none, "query": "own: "}) == {"query": "own: ", "document": ""}


def test_a_name_like_a_known_model_warns_once(tmp_path: Path) -> None:
    folder = write_replica(tmp_path / "my-bge-small-en-tuned", _modules(tmp_path), prompts=None)
    with pytest.warns(CDEWarning, match="files have none.*prefixes={'query': 'Represent this sentence"):
        plain = PlainEmbedder(folder, options=options("onnx"))
    assert plain.context.identity.prefixes == {"query": "", "document": ""}
    PlainEmbedder(folder, options=options("onnx"))  # a warning would be an error
    other = PlainEmbedder(folder, prefixes={"query": "q: ", "document": ""}, options=options("onnx"))
    assert other.fingerprint != plain.fingerprint


def _modules(folder: Path) -> list[Any]:
    return [Transformer(str(write_parts(folder / "parts", "bert"))), Pooling(16)]
