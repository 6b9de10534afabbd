"""Published models as users hold them: from a folder of the hub's shape to vectors.

Contract: whatever the family, texts in, unit vectors out, as for any model; the context has exactly as many documents
as the model expects, and nothing that changes a vector leaves the fingerprint as it is.
"""

import numpy as np
import pytest
from golden import V1, V2, write_folder
from tiny import WORDS

from cde_rag import CDEModel, Context, ContextualEmbedder, EmbedderOptions
from cde_rag.embedders import corpus_contexts as embedder_module
from cde_rag.errors import ContextError, ContextMismatchError, ModelError
from cde_rag.evaluation import Corpus, RetrievalSet, evaluate
from cde_rag.models.runtimes.stage_runner import DOCUMENT, QUERY

pytestmark = [pytest.mark.usefixtures("tiny_backbones"), pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")]
CORPUS = [f"the {one} of the {other}" for one in WORDS[2:7] for other in WORDS[7:11]]
TEXTS = ["river", "the bank of the river", "a loan of water and money in the delta", "fish"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: write_folder(tmp_path_factory.mktemp("hub") / name, name) for name in (V1, V2)}


@pytest.fixture(params=[V1, V2])
def folder(request, folders):
    return folders[request.param]


def load(folder, **options):
    return CDEModel.from_pretrained(folder, device="cpu", dtype="float32", **options)


def test_from_corpus_to_vectors(folder):
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=load(folder))
    vectors = embedder.embed_documents(TEXTS)
    assert vectors.shape == (4, 64)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(vectors - embedder.embed_queries(TEXTS)).max() > 1e-2  # prefixes act
    assert embedder.context.size == 8
    again = ContextualEmbedder(load(folder), Context.from_bytes(embedder.context.to_bytes(), where="here"))
    np.testing.assert_array_equal(again.embed_documents(TEXTS), vectors)
    assert again.fingerprint == embedder.fingerprint


def test_batches_orders_and_corpus_order_change_nothing(folder):
    model = load(folder)
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=model)
    vectors = embedder.embed_documents(TEXTS)
    alone = ContextualEmbedder(model, embedder.context, options=EmbedderOptions(mini_batch_size=1))
    np.testing.assert_allclose(alone.embed_documents(TEXTS[::-1])[::-1], vectors, atol=1e-5)
    shuffled = ContextualEmbedder.from_corpus(CORPUS[::-1], model=model)
    assert shuffled.fingerprint == embedder.fingerprint
    np.testing.assert_allclose(shuffled.embed_documents(TEXTS), vectors, atol=1e-5)


def test_a_context_moves_vectors(folder):
    model = load(folder)
    own, other = (ContextualEmbedder.from_corpus(CORPUS, model=model, seed=seed) for seed in (0, 1))
    assert np.abs(own.embed_documents(TEXTS) - other.embed_documents(TEXTS)).max() > 1e-3
    assert own.fingerprint != other.fingerprint


@pytest.mark.parametrize("size", [1, 3, 5, 7])
def test_a_small_corpus_is_repeated_and_counted(folder, size):
    model = load(folder)
    first = ContextualEmbedder.from_corpus(CORPUS[:size], model=model)
    assert (first.context.size, first.context.counts.sum()) == (size, 8)
    assert first.context.counts.max() - first.context.counts.min() <= 1
    second = ContextualEmbedder.from_corpus(CORPUS[:size][::-1], model=model)
    assert second.fingerprint == first.fingerprint
    np.testing.assert_allclose(second.embed_queries(TEXTS), first.embed_queries(TEXTS), atol=1e-5)


@pytest.mark.parametrize("size", [5, 9])
def test_no_other_number_of_context_documents(folder, size):
    model = load(folder)
    with pytest.raises(ContextError, match=rf"expects 8 context documents, found context_size={size}"):
        ContextualEmbedder.from_corpus(CORPUS, model=model, context_size=size)
    vectors = model.first_stage(CORPUS[:size])
    context = Context.create(model.identity, CORPUS[:size], vectors, sampling="random", seed=0, documents_seen=20)
    with pytest.raises(ContextError, match=rf"expects a context of 8 documents, found {size}\."):
        ContextualEmbedder(model, context)


def test_fewer_when_asked_for(folder):
    model = load(folder, context_size=5)
    assert model.identity.name.endswith("?context_size=5")
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=model)
    assert embedder.context.counts.sum() == 5
    again = CDEModel.from_pretrained(model.identity.name, device="cpu", dtype="float32")
    ContextualEmbedder(again, embedder.context)
    with pytest.raises(ContextMismatchError):
        ContextualEmbedder(load(folder), embedder.context)
    with pytest.raises(ModelError, match="trained with 8 context documents; found 9"):
        load(folder, context_size=9)


def test_semantics_are_other_spaces(folder, folders):
    other = "hf_model_py" if folder == folders[V1] else "hub"
    trained, remote = load(folder), load(folder, semantics=other)
    assert (trained.identity.semantics, remote.identity.semantics) == ("train", other)
    own = ContextualEmbedder.from_corpus(CORPUS, model=trained)
    theirs = ContextualEmbedder.from_corpus(CORPUS, model=remote)
    assert own.fingerprint != theirs.fingerprint
    assert np.abs(own.embed_documents(TEXTS) - theirs.embed_documents(TEXTS)).max() > 1e-2
    with pytest.raises(ContextMismatchError):
        ContextualEmbedder(trained, theirs.context)
    assert CDEModel.from_pretrained(remote.identity.name).identity == remote.identity
    with pytest.raises(ModelError, match=r"Expected semantics 'train' or .*, found 'best'"):
        load(folder, semantics="best")


def test_generic_context_is_explicit_and_a_space_of_its_own(folder):
    model = load(folder)
    generic = Context.generic(model)
    assert (generic.manifest.source, generic.counts.sum()) == ("generic", 8)
    own = ContextualEmbedder.from_corpus(CORPUS, model=model)
    embedder = ContextualEmbedder(model, generic)
    assert embedder.fingerprint == Context.generic(model).fingerprint != own.fingerprint
    assert np.abs(own.embed_documents(TEXTS) - embedder.embed_documents(TEXTS)).max() > 1e-3


def test_null_context_where_the_model_learned_one(folder, folders):
    model = load(folder)
    null = Context.null(model)
    if folder == folders[V2]:
        with pytest.raises(ContextError, match=r"no null embedding.*Context\.generic\(model\)"):
            ContextualEmbedder(model, null)
        return
    assert np.isfinite(ContextualEmbedder(model, null).embed_documents(TEXTS)).all()
    assert null.fingerprint != Context.generic(model).fingerprint


def test_prefixes_stand_before_texts(folder):
    model = load(folder)
    plain = model.tokenizer(["search_query: river", "search_document: river"], 32)
    assert model.tokenize(["river"], role=QUERY) == plain[:1]
    assert model.tokenize(["river"], role=DOCUMENT) == plain[1:]
    context = Context.generic(model)
    expected = model.first_stage(["river"])
    network = load(folder).network
    from cde_rag.models.runtimes.torch_runner import pad

    np.testing.assert_allclose(network.read(*pad([plain[1].ids])).numpy(), expected, atol=1e-6)
    assert dict(context.identity.prefixes) == {"query": "search_query: ", "document": "search_document: "}


def test_other_prefixes_are_another_space(folder):
    prefixes = {"query": "classification: ", "document": ""}
    model = load(folder, prefixes=prefixes)
    assert model.identity.prefixes == prefixes
    assert model.tokenize(["river"], role=DOCUMENT) == model.tokenizer(["river"], 32)
    assert CDEModel.from_pretrained(model.identity.name).identity == model.identity
    own = ContextualEmbedder.from_corpus(CORPUS, model=load(folder))
    assert ContextualEmbedder.from_corpus(CORPUS, model=model).fingerprint != own.fingerprint
    with pytest.raises(ContextMismatchError):
        ContextualEmbedder(model, own.context)
    with pytest.raises(ModelError, match="Expected prefixes for 'query' and 'document'"):
        load(folder, prefixes={"query": "a"})


def test_clusters_are_of_directions(folder, monkeypatch):
    norms = []
    draw = embedder_module.sample_clusters

    def record(texts, size, *, seed, embed):
        norms.extend(np.linalg.norm(embed(CORPUS), axis=1))
        return draw(texts, size, seed=seed, embed=embed)

    monkeypatch.setattr(embedder_module, "sample_clusters", record)
    assert ContextualEmbedder.from_corpus(CORPUS, model=load(folder), strategy="clusters").context.counts.sum() == 8
    np.testing.assert_allclose(norms, 1, atol=1e-5)


def test_no_parents(folder):
    embedder = ContextualEmbedder.from_corpus(CORPUS, model=load(folder))
    with pytest.raises(ModelError, match="reads no siblings"):
        embedder.embed_documents(TEXTS, parents=["p"] * 4)
    with pytest.raises(ModelError, match="reads no siblings"):
        embedder.embed_passages(TEXTS, [["river"]] * 4)


def test_prepared_by_a_model_of_another_kind(folder, tiny_model):
    model = load(folder)
    with pytest.raises(TypeError, match="not prepared by this model"):
        model.stages.embed([[2, 3]], QUERY, tiny_model.prepare(Context.null(tiny_model)), None, None)
    with pytest.raises(TypeError, match="not prepared by this model"):
        tiny_model.stages.embed([[2, 3]], QUERY, model.prepare(Context.generic(model)), None, None)


def test_bf16_is_the_same_space(folder):
    single = ContextualEmbedder.from_corpus(CORPUS, model=load(folder))
    half = CDEModel.from_pretrained(folder, device="cpu", dtype="bfloat16")
    assert half.identity == single.model.identity
    vectors = ContextualEmbedder(half, single.context).embed_documents(TEXTS)
    assert (vectors * single.embed_documents(TEXTS)).sum(axis=1).min() > 0.999


def test_generic_context_of_a_bundled_kind(tiny_model):
    generic = Context.generic(tiny_model)
    assert generic.size == 512
    assert np.isfinite(ContextualEmbedder(tiny_model, generic).embed_queries(["river"])).all()


def test_evaluate_gives_as_many_as_the_model_expects(folder, folders):
    """Also: what a two-way model does not know (siblings, a null context) is no system of it."""
    parents = tuple(text[:8] for text in CORPUS)
    corpus = Corpus("set", tuple(f"d{number}" for number in range(len(CORPUS))), tuple(CORPUS), parents)
    data = RetrievalSet(corpus, ("q",), ("bank",), ({"d3": 1},))
    asked = {"systems": ["own", "null", "parents", "parents_hybrid"], "model": load(folder)}
    found = evaluate([data], **asked)
    systems = ("own", "null") if folder == folders[V1] else ("own",)  # v2 has no null embedding
    assert (found.context_size, found.sets[0].context_documents, found.systems) == (8, 8, systems)
    with pytest.raises(ContextError, match="expects 8 context documents, found context_size=512"):
        evaluate([data], context_size=512, **asked)
