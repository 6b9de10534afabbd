"""A pair of encoders: sums of scores, files, and what a batch, a context and siblings do to it."""

import json
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tiny import tiny_cde_model, tiny_network, tiny_tokenizer
from tiny_pair import tiny_pair, tiny_pieces

from cde_rag import CDEModel, Context, ContextualEmbedder
from cde_rag.errors import ModelError
from cde_rag.models.files import model_files
from cde_rag.models.files.model_files import VOCABULARY
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints
from cde_rag.models.pair import checkpoint as pair_checkpoint
from cde_rag.models.pair.graph import StoredPair
from cde_rag.models.pair.network import halves
from cde_rag.models.runtimes.torch_runner import pad

TEXTS = ["the river", "a loan of the bank", "water and fish", "x" * 20, "THE bank?!"]
SHARE = 0.6


@pytest.fixture(scope="module", params=["one file of weights", "a file of word embeddings"])
def folder(tmp_path_factory, request):
    """A pair on disk, beside the package folder that its first half is in."""
    root = tmp_path_factory.mktemp("pairs")
    checkpoints.write(root / "bundled" / "tiny", tiny_network(), tiny_tokenizer())
    *_, digest = checkpoints.read(root / "bundled" / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "one file of weights":
            patch.setattr(pair_checkpoint, "_APART_BYTES", 0)
        pair_checkpoint.write(root / "tiny-pair", *tiny_pair("tiny", digest))
    return root / "tiny-pair"


@pytest.fixture(autouse=True)
def package(folder, monkeypatch):
    monkeypatch.setattr(model_files, "BUNDLED", folder.parent / "bundled")
    if (folder / VOCABULARY).exists():
        monkeypatch.setattr(pair_checkpoint, "_APART_BYTES", 0)


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "tiny-pair")


@pytest.fixture
def pair(folder):
    return CDEModel.from_pretrained(folder, device="cpu", dtype="float32")


def test_the_tokens_of_a_text_are_those_of_one_half(pair):
    """Splitters compare them with the length that each half reads."""
    text = "river bank " * 3
    (row,) = pair.tokenize([text])
    halves = [
        sum(each < pair.tokenizer.start for each in row.ids),
        sum(each >= pair.tokenizer.start for each in row.ids),
    ]
    assert pair.count_tokens([text], windows=False) == max(halves) < len(row.ids)
    assert pair.count_tokens(["river " * 5_000], windows=False) == pair.identity.max_length


def own(model):
    return ContextualEmbedder.from_corpus(TEXTS, model=model, context_size=3)


def second_vectors(model, texts, role="passage: "):
    """Embed with the second half alone, one text at a time, without padding."""
    network, start = model.network, model.tokenizer.start
    ids = [[each - start for each in row.ids if each >= start] for row in model.tokenizer(texts, 32, prefix=role)]
    with torch.inference_mode():
        return torch.cat([network.second(*pad([row])) for row in ids]).numpy()


@settings(max_examples=30)
@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.sampled_from([32, 96])), elements=st.floats(-9, 9, width=32)))
def test_four_bits_move_no_entry_far_and_come_back_to_the_bit(matrix):
    value = torch.from_numpy(matrix)
    stored = pair_checkpoint.pack(value)
    back = pair_checkpoint.unpack(*stored)
    largest = value.abs().reshape(len(value), -1, 32).amax(dim=2, keepdim=True)
    error = (back - value).abs().reshape(len(value), -1, 32)
    assert (error <= largest / 8 * 1.01 + 1e-5).all()
    torch.testing.assert_close(pair_checkpoint.unpack(*pair_checkpoint.pack(back)), back, rtol=0, atol=0)


def test_a_score_is_the_sum_of_both_halves_scores(pair):
    context = own(pair)
    first = ContextualEmbedder(
        tiny_cde_model(), Context.null(tiny_cde_model())
    )  # the same weights but for int8, in no context
    nothing = ContextualEmbedder(pair, Context.null(pair))
    asked, told = nothing.embed_queries(TEXTS), nothing.embed_documents(TEXTS)
    halves_of = [
        first.embed_queries(TEXTS) @ first.embed_documents(TEXTS).T,
        second_vectors(pair, TEXTS, "query: ") @ second_vectors(pair, TEXTS).T,
    ]
    np.testing.assert_allclose(asked @ told.T, (1 - SHARE) * halves_of[0] + SHARE * halves_of[1], atol=0.02)
    np.testing.assert_allclose(np.linalg.norm(context.embed_documents(TEXTS), axis=1), 1, atol=1e-5)


def test_the_second_half_reads_no_context(pair):
    with_context, without = own(pair).embed_documents(TEXTS), ContextualEmbedder(pair, Context.null(pair))
    turned = [vectors @ pair.network.rotation.numpy().T for vectors in (with_context, without.embed_documents(TEXTS))]
    np.testing.assert_allclose(turned[0][:, 16:], turned[1][:, 16:], atol=1e-5)
    np.testing.assert_allclose(turned[0][:, 16:], SHARE**0.5 * second_vectors(pair, TEXTS), atol=1e-5)
    assert np.abs(turned[0][:, :16] - turned[1][:, :16]).max() > 0.01


def test_siblings_act_in_the_first_half_alone(pair):
    embedder = own(pair)
    parents = ["a", "a", None, "b", "b"]
    with_siblings, alone = embedder.embed_documents(TEXTS, parents=parents), embedder.embed_documents(TEXTS)
    moved = np.abs((with_siblings - alone) @ pair.network.rotation.numpy().T)
    assert moved[[0, 1, 3, 4], :16].max(axis=1).min() > 1e-3
    assert moved[2].max() < 1e-5
    assert moved[:, 16:].max() < 1e-5


def test_batched_equals_single(pair):
    embedder = own(pair)
    single = np.concatenate([embedder.embed_documents([text]) for text in TEXTS])
    np.testing.assert_allclose(embedder.embed_documents(TEXTS), single, atol=1e-5)


def test_halves_of_a_batch_are_its_rows_cut_where_the_second_begins():
    rows = [[1, 2, 12, 13, 14], [3, 11], [4, 5, 6, 7, 15]]
    (first, first_mask), (second, second_mask) = halves(*pad(rows), 10)
    assert [row[there].tolist() for row, there in zip(first, first_mask, strict=True)] == [[1, 2], [3], [4, 5, 6, 7]]
    assert [row[there].tolist() for row, there in zip(second, second_mask, strict=True)] == [[2, 3, 4], [1], [5]]


def test_a_row_is_cut_in_each_half(pair):
    (row,) = pair.tokenize(["river " * 100])
    assert sum(each < pair.tokenizer.start for each in row.ids) == sum(each >= pair.tokenizer.start for each in row.ids)
    assert row.truncated
    assert pair.tokenizer.reach(["river " * 100, "river"], 32)[1] == 5


def test_another_role_is_another_vector(pair):
    embedder = own(pair)
    assert (embedder.embed_queries(TEXTS) * embedder.embed_documents(TEXTS)).sum(axis=1).max() < 0.999


def test_what_is_written_comes_back_to_the_bit(pair, folder, tmp_path):
    pair_checkpoint.write(tmp_path / "again", pair.network, pair.tokenizer)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }


def test_a_copied_folder_has_the_same_vectors(pair, folder, tmp_path):
    ModelSource.of(folder).copy(tmp_path / "copy")
    again = CDEModel.from_pretrained(tmp_path / "copy", device="cpu", dtype="float32")
    assert again.identity.weights_sha256 == pair.identity.weights_sha256
    np.testing.assert_array_equal(own(again).embed_documents(TEXTS), own(pair).embed_documents(TEXTS))


def test_word_embeddings_in_a_file_of_their_own_are_part_of_the_digest(folder, tmp_path):
    *_, digest = checkpoints.read(folder.parent / "bundled" / "tiny")
    network, tokenizer = tiny_pair("tiny", digest)
    network.second.embeddings.word.weight.mul_(2)
    pair_checkpoint.write(tmp_path / "other", network, tokenizer)
    assert pair_checkpoint.read(tmp_path / "other")[2] != pair_checkpoint.read(folder)[2]


def test_a_graph_is_built_of_the_weights_of_torch(pair, folder):
    state = StoredPair.read(folder).state()
    assert state.keys() == pair.network.state_dict().keys()
    for name, value in pair.network.state_dict().items():
        np.testing.assert_array_equal(state[name], value.numpy())


def test_the_file_does_not_hold_the_first_half(folder):
    assert b'"first.' not in (folder / checkpoints.WEIGHTS).read_bytes()[:100_000]


def change(folder, **fields):
    path = folder / checkpoints.CONFIG
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"first_sha256": "0" * 64}, "expected tiny with the digest 0000000000000000… as its first half, found"),
        (
            {"first": "tiny-2"},
            r"expected its first half, 'tiny-2', among the installed models \(cde-mini-0, cde-multilingual-1, tiny\)",
        ),
        ({"first": "../tiny"}, "expected its first half"),
        ({"format": 2}, "of format 1, found format 2. Update cde-rag"),
        ({"colour": "red"}, "colour"),
        ({"layers": "2"}, "layers has to be"),
        ({"layers": 3}, "does not hold the tensors"),
        ({"dim": 40}, "dim has to be"),
        ({"dim": 47}, r"16 \+ 32, its halves'; found 47"),
        ({"second_share": 1.0}, "second_share has to lie between 0 and 1, found 1.0"),
    ],
)
def test_a_config_that_is_not_right_is_told(copy, fields, message):
    change(copy, **fields)
    with pytest.raises(ModelError, match=message):
        CDEModel.from_pretrained(copy)


def test_a_config_without_digests_is_told(copy):
    path = copy / checkpoints.CONFIG
    value = json.loads(path.read_text())
    del value["weights_sha256"]
    path.write_text(json.dumps(value))
    with pytest.raises(ModelError, match=r"config with the digests of its files at .* found: KeyError"):
        CDEModel.from_pretrained(copy)


@pytest.mark.parametrize("name", [checkpoints.WEIGHTS, checkpoints.TOKENIZER, VOCABULARY])
def test_files_that_are_damaged_or_missing_are_told(copy, name):
    if not (copy / name).exists():
        pytest.skip("its word embeddings are among the weights")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    with pytest.raises(ModelError, match=f"{name}: config.json expects sha256 .* damaged"):
        CDEModel.from_pretrained(copy)
    (copy / name).unlink()
    with pytest.raises(ModelError, match=f"Expected .*{name}"):
        CDEModel.from_pretrained(copy)


def test_what_another_kind_of_model_prepared_is_refused(pair):
    with pytest.raises(TypeError, match="str was not prepared by this model"):
        pair.network(*pad([[1, 70]]), 0, "nothing")


def test_a_context_is_bound_to_the_pair_and_not_to_its_first_half(pair):
    assert own(pair).context.identity.weights_sha256 != tiny_cde_model().identity.weights_sha256
    assert own(pair).context.identity.dim == 48
    assert json.loads(tiny_pieces())["model"]["type"] == "Unigram"
