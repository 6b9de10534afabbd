"""The Context artifact: its fingerprint names the vector space, its file says when it is not what was written."""

import dataclasses
import errno
import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cde_rag.context import file_format as artifact
from cde_rag.context.context import FORMAT, Context
from cde_rag.context.identity import ARITHMETIC, PLAIN, ModelIdentity
from cde_rag.errors import ContextError, ContextFormatError, ContextMissingError, CorpusError

DIM = 4
IDENTITY = ModelIdentity(
    name="tiny",
    weights_sha256="a" * 64,
    tokenizer_sha256="b" * 64,
    attention="one_way",
    semantics="latents",
    roles="prefix",
    prefixes={"query": "q: ", "document": "d: "},
    max_length=32,
    pooling="mean",
    normalisation="unit",
    dim=DIM,
)


@dataclass
class Model:
    identity: ModelIdentity = IDENTITY


def vectors_of(documents: list[str]) -> np.ndarray:
    """Vectors that depend on each text alone."""
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") for text in documents]
    rows = [np.random.default_rng(seed).normal(size=DIM) for seed in seeds]
    return np.array(rows, dtype=np.float32).reshape(-1, DIM)


def make(documents: list[str], identity: ModelIdentity = IDENTITY, **information) -> Context:
    asked = {"sampling": "random", "seed": 0, "documents_seen": 9, **information}
    return Context.create(identity, documents, vectors_of(documents), **asked)


documents = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=20)


@pytest.mark.usefixtures("unchecked")
def test_a_seed_of_numpy_can_be_stored():
    assert Context.from_bytes(make(["a"], seed=np.int64(7)).to_bytes(), where="memory").manifest.seed == 7
    with pytest.raises(TypeError, match="interpreted as an integer"):
        make(["a"], seed=0.5)


# --- the fingerprint: what determines the space, and nothing else


def test_rows_stand_by_digest_with_counts():
    context = make(["b", "a", "b"])
    assert context.size == 2
    expected = sorted((hashlib.sha256(text.encode()).hexdigest(), text, count) for text, count in [("a", 1), ("b", 2)])
    assert [row.tobytes().hex() for row in context.digests] == [digest for digest, _, _ in expected]
    assert context.counts.tolist() == [count for _, _, count in expected]
    np.testing.assert_array_equal(context.context_embeddings, vectors_of([text for _, text, _ in expected]))


@given(documents, st.randoms(use_true_random=False))
def test_order_of_documents_does_not_matter(texts: list[str], random):
    shuffled = random.sample(texts, len(texts))
    one, other = make(texts), make(shuffled)
    assert one.fingerprint == other.fingerprint
    np.testing.assert_array_equal(one.context_embeddings, other.context_embeddings)
    np.testing.assert_array_equal(one.counts, other.counts)


@given(documents, documents)
def test_fingerprint_tells_sets_of_documents_apart(one: list[str], other: list[str]):
    assert (make(one).fingerprint == make(other).fingerprint) == (sorted(one) == sorted(other))


def test_information_is_no_part_of_the_fingerprint():
    asked = {"sampling": "strata", "seed": 7, "documents_seen": 1000, "source": "first_slice"}
    assert make(["a"], **asked).fingerprint == make(["a"]).fingerprint
    assert make(["a"], replace(IDENTITY, name="other")).fingerprint == make(["a"]).fingerprint


OTHERS = {
    "weights_sha256": "c" * 64,
    "tokenizer_sha256": "c" * 64,
    "attention": "two_way",
    "semantics": "published",
    "roles": "vector",
    "prefixes": {"query": "", "document": "d: "},
    "max_length": 33,
    "pooling": "cls",
    "normalisation": "none",
    "dim": 5,
    "windows": True,
    "sibling_weight": 0.3,
    "corpus_map": True,
    "tokens_per_document": 2,
}


def test_all_of_the_identity_but_its_name_is_tried():
    assert {field.name for field in dataclasses.fields(ModelIdentity)} == {"name", *OTHERS}


@pytest.mark.parametrize("field", OTHERS)
def test_another_model_is_another_space(field: str):
    arithmetic = {"attention": ARITHMETIC} if field in ("sibling_weight", "corpus_map") else {}
    identity = replace(IDENTITY, **arithmetic)
    other = replace(identity, **{field: OTHERS[field]})
    assert Context.null(Model(other)).fingerprint != Context.null(Model(identity)).fingerprint


@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("facts", [{}, {"sibling_weight": 1e-07}, {"sibling_weight": 1.0, "corpus_map": True}])
def test_an_identity_is_read_as_it_was_written(windows: bool, facts: dict[str, Any]):
    identity = replace(IDENTITY, attention=ARITHMETIC if facts else PLAIN, windows=windows, **facts)
    assert ModelIdentity.from_json(identity.to_json()) == identity


@pytest.mark.parametrize("semantics", ["latents", "latents; siblings 0.30; corpus none", "; siblings 1.0; corpus no"])
def test_arithmetic_that_is_written_otherwise_is_refused(semantics: str):
    """Its fingerprint could not be computed from what was read."""
    arithmetic = replace(IDENTITY, attention=ARITHMETIC)
    with pytest.raises(ValueError, match="semantics"):
        ModelIdentity.from_json(arithmetic.to_json() | {"semantics": semantics})


def test_fingerprint_stays_for_ever():
    """Stored collections name it: a change here makes every one of them foreign."""
    assert make(["a", "b", "a"]).fingerprint == "bf55c076bec55b5f12bd6a55b88c99a738d5a1bf702135d958afb00d345d4968"
    assert Context.null(Model()).fingerprint == "8d0996ec09ecce7097ddde63588e5ecf36d34d1ceb4c8fb8bf5c5abe86fd88ea"


def test_null_context():
    context = Context.null(Model())
    assert context.is_null
    assert context.context_embeddings.shape == (0, DIM)
    assert not make(["a"]).is_null
    assert context.fingerprint != make([""]).fingerprint


def test_contexts_cannot_be_changed():
    context = make(["a"])
    with pytest.raises(ValueError, match="read-only"):
        context.context_embeddings[0, 0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.counts = np.ones(1, dtype=np.int64)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("texts", "embeddings"),
    [
        ([], np.empty((0, DIM), dtype=np.float32)),
        (["a"], np.zeros((2, DIM), dtype=np.float32)),
        (["a"], np.zeros((1, DIM + 1), dtype=np.float32)),
        (["a"], np.full((1, DIM), np.nan, dtype=np.float32)),
    ],
)
def test_embeddings_that_are_no_context(texts: list[str], embeddings: np.ndarray):
    with pytest.raises(ContextError, match="needs finite float32 embeddings"):
        Context.create(IDENTITY, texts, embeddings, sampling="random", seed=0, documents_seen=1)


def test_lone_surrogate_in_a_document():
    with pytest.raises(CorpusError, match="context document 1 is not valid Unicode"):
        Context.create(IDENTITY, ["a", "\udc00"], vectors_of(["a", "b"]), sampling="random", seed=0, documents_seen=2)


# --- the file


@given(documents)
def test_what_is_saved_is_loaded(texts: list[str]):
    context = make(texts)
    loaded = Context.from_bytes(context.to_bytes(), where="here")
    assert loaded.manifest == context.manifest
    for name in ("context_embeddings", "counts", "digests"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(context, name))
        assert getattr(loaded, name).dtype == getattr(context, name).dtype
    assert loaded.to_bytes() == context.to_bytes()


def test_null_context_is_saved_too(tmp_path: Path):
    Context.null(Model()).save(tmp_path / "null.context.safetensors")
    assert Context.load(tmp_path / "null.context.safetensors").is_null


def test_file_is_read_by_anyone_who_reads_safetensors(tmp_path: Path):
    from safetensors.numpy import load_file

    make(["a", "b"]).save(tmp_path / "docs.context.safetensors")
    assert load_file(tmp_path / "docs.context.safetensors")["context_embeddings"].shape == (2, DIM)


def test_every_flipped_bit_is_found():
    data = make(["a", "b"]).to_bytes()
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ContextFormatError):
            Context.from_bytes(bytes(damaged), where="here")


def test_every_truncation_is_found():
    data = make(["a"]).to_bytes()
    for length in range(len(data)):
        with pytest.raises(ContextFormatError):
            Context.from_bytes(data[:length], where="here")
    with pytest.raises(ContextFormatError):
        Context.from_bytes(data + b"\0", where="here")


@given(st.binary(max_size=200))
def test_other_bytes_are_no_context(data: bytes):
    with pytest.raises(ContextFormatError, match="here: expected"):
        Context.from_bytes(data, where="here")


def written(context: Context) -> dict[str, Any]:
    """The manifest as a file holds it."""
    return {**dataclasses.asdict(context.manifest), "identity": context.identity.to_json()}


def rewritten(context: Context, manifest: dict | None = None, **tensors: np.ndarray) -> bytes:
    """A file with valid integrity whose content is another."""
    names = ("context_embeddings", "counts", "digests")
    content = {name: getattr(context, name) for name in names} | tensors
    return artifact.pack(content, written(context) | (manifest or {}))


def test_the_manifest_says_how_many_documents():
    context = make(["a", "b", "a"])
    assert (context.manifest.context_size, context.size) == (3, 2)
    with pytest.raises(ContextFormatError, match="3 context documents and not 2"):
        Context.from_bytes(rewritten(context, {"context_size": 2}), where="here")


def test_older_files_do_not_say_how_many():
    context = make(["a", "b", "a"])
    manifest = written(context)
    del manifest["context_size"]
    tensors = {name: getattr(context, name) for name in ("context_embeddings", "counts", "digests")}
    loaded = Context.from_bytes(artifact.pack(tensors, manifest), where="here")
    assert loaded.manifest == context.manifest


def test_a_context_of_format_1_chooses_siblings_by_rule_1_and_writes_what_was_read():
    context = make(["a", "b"])
    fields = {name: value for name, value in written(context).items() if name != "sibling_rule"}
    arrays = {name: getattr(context, name) for name in ("context_embeddings", "counts", "digests")}
    old = artifact.pack(arrays, {**fields, "format": 1})
    read = Context.from_bytes(old, where="here")
    assert (context.manifest.sibling_rule, read.manifest.sibling_rule) == (2, 1)
    assert read.fingerprint == context.fingerprint
    assert read.to_bytes() == old


def test_a_sibling_rule_that_is_not_known_is_refused():
    with pytest.raises(ContextFormatError, match=r"the sibling rule 3, where \(1, 2\) are known"):
        Context.from_bytes(rewritten(make(["a"]), {"sibling_rule": 3}), where="here")


def test_newer_format_says_what_to_do():
    data = rewritten(make(["a"]), {"format": FORMAT + 1, "more": "fields"})
    with pytest.raises(ContextFormatError, match=r"here: expected format 2 or older, found format 3\. Update cde-rag"):
        Context.from_bytes(data, where="here")


@pytest.mark.parametrize(
    ("manifest", "tensors", "found"),
    [
        ({"more": 1}, {}, "other fields"),
        ({"identity": {"name": "tiny"}}, {}, "other fields"),
        ({"fingerprint": "0" * 64}, {}, "fingerprint"),
        ({"seed": "0"}, {}, "other fields.*seed is no int"),
        ({"identity": 1}, {}, "other fields"),
        ({}, {"more": np.ones(1)}, "tensors"),
        ({}, {"counts": np.array([0])}, "counts below 1"),
        ({}, {"counts": np.array([2])}, "fingerprint"),
        ({}, {"counts": np.array([1, 1])}, "tensors"),
        ({}, {"context_embeddings": np.full((1, DIM), np.inf, dtype=np.float32)}, "not finite"),
        ({}, {"context_embeddings": np.ones((1, DIM + 1), dtype=np.float32)}, "tensors"),
        ({}, {"context_embeddings": np.ones((1, DIM))}, "tensors.*float64"),
    ],
)
def test_whole_file_with_wrong_content(manifest: dict, tensors: dict[str, np.ndarray], found: str):
    with pytest.raises(ContextFormatError, match=f"here: expected an intact context file, found .*{found}"):
        Context.from_bytes(rewritten(make(["a"]), manifest, **tensors), where="here")


def test_sizes_are_limited_before_parsing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    data = make(["a"]).to_bytes()
    huge_header = (1 << 40).to_bytes(8, "little") + data[8:]
    with pytest.raises(ContextFormatError, match="a header of 1099511627776"):
        Context.from_bytes(huge_header, where="here")
    deep = b"[" * 100_000
    with pytest.raises(ContextFormatError, match="no manifest"):
        Context.from_bytes(len(deep).to_bytes(8, "little") + deep, where="here")
    (tmp_path / "large").write_bytes(data)
    monkeypatch.setattr("cde_rag.context.file_format.MAX_BYTES", 100)
    with pytest.raises(ContextFormatError, match="more than the 100 bytes"):
        Context.load(tmp_path / "large")


def test_writing_is_all_or_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "docs.context.safetensors"
    make(["old"]).save(path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ContextError, match=r"No space left on device.*Choose a writable folder"):
        make(["new"]).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written_or_read(tmp_path: Path):
    with pytest.raises(ContextError, match="not written"):
        make(["a"]).save(tmp_path / "missing" / "docs.context.safetensors")
    with pytest.raises(ContextMissingError, match="no such file"):
        Context.load(tmp_path / "docs.context.safetensors")
    with pytest.raises(ContextError, match="not readable"):
        Context.load(tmp_path)


def test_context_needs_no_torch():
    code = "import sys, cde_rag.context.context, cde_rag.context.sampling; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
