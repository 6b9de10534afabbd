"""Golden identities of every family: what is written in stored Contexts, and the fingerprints and digests of it.

`tests/reference/identities.json` holds them as of 2026-11-28; a difference makes stored vectors foreign.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_model import write_static, write_transformer

from cde_rag import Context, ContextualEmbedder, EmbedderOptions, FunctionEmbedder, PlainEmbedder
from cde_rag.context.file_format import unpack
from cde_rag.context.identity import ModelIdentity
from cde_rag.embedders.plain_embedders import ArithmeticEmbedder
from cde_rag.indexing.sibling_passages import passages
from cde_rag.models.files.model_files import find, read_header
from cde_rag.models.one_way.config import ModelConfig
from cde_rag.models.pair.config import PairConfig
from cde_rag.models.two_way.config import TwoWayConfig
from cde_rag.records import Record, Row

pytestmark = pytest.mark.filterwarnings("ignore::cde_rag.errors.SmallContextWarning")

GOLDEN: Mapping[str, Any] = json.loads(
    (Path(__file__).parent / "reference" / "identities.json").read_text(encoding="utf-8")
)
TEXTS = ["the river bank", "money in the bank", "a loan of money"]
WEIGHTS, TOKENIZER = "a" * 64, "b" * 64
TWO_WAY = {
    "vocab_size": 64,
    "dim": 16,
    "layers": 2,
    "heads": 4,
    "intermediate": 32,
    "max_positions": 128,
    "trained_context_size": 4,
    "context_size": 4,
    "max_length": 32,
    "null_embedding": True,
}


def axes(texts: list[str]) -> np.ndarray:
    """One axis for each text, by its length: unit vectors whose bytes are the same on every machine."""
    return np.eye(16, dtype=np.float32)[[len(text) % 16 for text in texts]]


def function() -> Any:
    return FunctionEmbedder(axes, name="axes-1", prefixes={"query": "q: ", "document": ""})


def _configs() -> dict[str, ModelConfig | PairConfig | TwoWayConfig]:
    return {
        "one_way": ModelConfig.from_json(read_header(find("cde-mini-1")).config),
        "pair": PairConfig.from_json(read_header(find("cde-base-1")).config),
        "two_way": TwoWayConfig(name="jxm/v2@main", family="modernbert", **TWO_WAY),
        "two_way_cached": TwoWayConfig(
            name="v1", family="nomic_bert", attention="two_way_cached", semantics="hf_model_py", **TWO_WAY
        ),
    }


def _two_stage(family: str, *, windows: bool, corpus: bool) -> Context:
    identity = _configs()[family].identity(WEIGHTS, TOKENIZER)

    class Model:
        def __init__(self, identity: ModelIdentity) -> None:
            self.identity = identity

    if not corpus:
        return Context.null(Model(identity)).with_windows(windows=windows)
    vectors = np.resize(np.eye(4, dtype=np.float32), (4, identity.dim))
    made = Context.create(
        identity, [*TEXTS, TEXTS[0]], vectors[[0, 1, 2, 0]], sampling="random", seed=3, documents_seen=9
    )
    return made.with_windows(windows=windows)


@cache
def cases(folder: Path) -> dict[str, Context]:
    """Contexts of every family, with and without windows, a corpus, and arithmetic."""
    found = {
        f"{family}{' windows' * windows}{' corpus' * corpus}": _two_stage(family, windows=windows, corpus=corpus)
        for family in _configs()
        for windows in (False, True)
        for corpus in (False, True)
    }
    transformer, static = write_transformer(folder / "plain"), write_static(folder / "static")
    for name, plain in {
        "plain": PlainEmbedder(transformer, options=EmbedderOptions(device="cpu", runtime="torch")),
        "plain windows": PlainEmbedder(
            transformer, options=EmbedderOptions(device="cpu", runtime="torch"), windows=True
        ),
        "plain short": PlainEmbedder(
            transformer,
            options=EmbedderOptions(device="cpu", runtime="torch"),
            max_length=7,
            prefixes={"query": "", "document": "d "},
        ),
        "static": PlainEmbedder(static, options=EmbedderOptions(device="cpu")),
        "function": function(),
    }.items():
        found[name] = plain.context
        found[f"{name} mapped"] = ContextualEmbedder.from_corpus(TEXTS, model=plain).context
        found[f"{name} siblings"] = ArithmeticEmbedder.from_corpus([], model=plain, weight=0.3, corpus=False).context
        found[f"{name} both"] = ArithmeticEmbedder.from_corpus(TEXTS, model=plain, weight=1.0, seed=5).context
    return found


def described(context: Context, *, exact: bool) -> dict[str, Any]:
    """Describe a Context without what differs from machine to machine: its date, vectors, and a test model's files."""
    manifest = replace(context.manifest, created="", library_version="")
    empty = replace(context, manifest=manifest, context_embeddings=np.zeros_like(context.context_embeddings))
    data = empty.to_bytes()
    _, raw = unpack(data, newest=2, where="the golden")
    assert Context.from_bytes(data, where="the golden").to_bytes() == data
    assert raw["fingerprint"] == by_hand(raw["identity"], context)
    if exact:
        return {**raw, "bytes": hashlib.sha256(data).hexdigest()}
    files = {"name": "…", "weights_sha256": "…", "tokenizer_sha256": "…"}
    return {**raw, "identity": raw["identity"] | files, "fingerprint": "…"}


def by_hand(identity: Mapping[str, Any], context: Context) -> str:
    """The fingerprint as stores of all versions hold it, from the identity as it is written."""
    space = {key: value for key, value in identity.items() if key != "name"}
    rows = [[row.tobytes().hex(), int(count)] for row, count in zip(context.digests, context.counts, strict=True)]
    text = json.dumps({**space, "documents": rows or "null"}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    made = cases(tmp_path_factory.mktemp("models"))
    return {
        name: described(context, exact="plain" not in name and "static" not in name) for name, context in made.items()
    }


def test_no_family_is_forgotten(found: Mapping[str, Any]) -> None:
    assert found.keys() == GOLDEN["contexts"].keys()


@pytest.mark.parametrize("name", GOLDEN["contexts"])
def test_identity_and_fingerprint_are_as_they_were_written(name: str, found: Mapping[str, Any]) -> None:
    assert found[name] == GOLDEN["contexts"][name]


@pytest.mark.parametrize("rule", ["1", "2"])
def test_digests_of_passages_are_as_they_were_written(rule: str) -> None:
    assert digests(int(rule)) == GOLDEN["digests"][rule]


def digests(rule: int) -> dict[str, list[str]]:
    """Digests of passages with titles, alone and as siblings of each other."""
    made = ArithmeticEmbedder.from_corpus([], model=function(), weight=0.3, corpus=False)
    context = replace(made.context, manifest=replace(made.context.manifest, sibling_rule=rule))
    embedder = made.with_context(context)
    rows = [Row(Record(str(place), f"{TEXTS[place % 3]} {place}", title), "") for place, title in enumerate(TITLES)]
    return {
        "alone": [passages([row], embedder)[0].digest for row in rows],
        "siblings": [each.digest for each in passages(rows, embedder)],
    }


TITLES = ["", "Banks", "Banks", "Rivers > Banks", *[""] * 16]
