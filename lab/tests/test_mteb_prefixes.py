"""Published models in MTEB: each type of task is read with its own prefix, in queries, documents and context alike."""

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from golden import V1, V2, tiny_backbones, write_folder  # noqa: F401 a fixture
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.types import PromptType
from safetensors.torch import load_file, save_file
from tiny import WORDS

from cde_rag import CDEModel, ContextualEmbedder
from cde_rag.errors import ContextError, ModelError
from lab.mteb import CDEForMTEB

pytestmark = [pytest.mark.usefixtures("tiny_backbones"), pytest.mark.filterwarnings("ignore::cde_rag.CDEWarning")]
TEXTS = [f"the {one} of the {other}" for one in WORDS[2:6] for other in WORDS[7:11]]
AT: dict[str, Any] = {"hf_split": "test", "hf_subset": "default"}


def task(kind: str) -> TaskMetadata:
    return TaskMetadata(
        name=kind,
        description=kind,
        type=kind,
        dataset={"path": kind, "revision": "1"},
        eval_langs=["eng-Latn"],
        main_score="any",
    )


@pytest.fixture(params=[V1, V2])
def folder(request, tmp_path):
    return write_folder(tmp_path / "model", request.param)


@pytest.fixture
def encoder(folder):
    return CDEForMTEB(folder, device="cpu", dtype="float32")


def expected(folder, prefix: str) -> ContextualEmbedder:
    prefixes = {"query": prefix, "document": prefix}
    model = CDEModel.from_pretrained(folder, device="cpu", dtype="float32", prefixes=prefixes)
    return ContextualEmbedder.from_corpus(TEXTS, model=model)


@pytest.mark.parametrize(
    ("kind", "prefix"), [("STS", "classification: "), ("Clustering", "clustering: "), ("Classification", "")]
)
def test_symmetric_tasks(encoder, folder, kind, prefix):
    own = expected(folder, prefix or "classification: ")
    found = encoder.encode([{"text": TEXTS}], task_metadata=task(kind), **AT)
    assert encoder.embedder.fingerprint == own.fingerprint
    np.testing.assert_allclose(found, own.embed_documents(TEXTS), atol=1e-5)


def test_prefixes_change_with_the_task_and_back(encoder, folder):
    corpus = Dataset.from_list([{"id": str(place), "text": text} for place, text in enumerate(TEXTS)])
    retrieval = task("Retrieval")
    own = ContextualEmbedder.from_corpus(TEXTS, model=CDEModel.from_pretrained(folder, device="cpu", dtype="float32"))
    meta = encoder.mteb_model_meta
    for _ in range(2):
        encoder.encode([{"text": TEXTS}], task_metadata=task("STS"), **AT)
        assert encoder.mteb_model_meta == meta  # or results would not be found again
        encoder.index(corpus, task_metadata=retrieval, encode_kwargs={}, **AT)
        assert encoder.embedder.fingerprint == own.fingerprint
        queries = encoder.encode(
            [{"text": TEXTS}], task_metadata=retrieval, prompt_type=PromptType.query, batch_size=3, **AT
        )
        np.testing.assert_allclose(queries, own.embed_queries(TEXTS), atol=1e-5)


def test_weights_that_change_between_tasks(encoder, folder):
    """Other prefixes mean that the model is loaded again."""
    encoder.encode([{"text": TEXTS}], task_metadata=task("STS"), **AT)
    path = folder / "model.safetensors"
    state = load_file(path)
    save_file({name: tensor / 2 for name, tensor in state.items()}, path)
    with pytest.raises(ModelError, match="was written since it was loaded"):
        encoder.encode([{"text": TEXTS}], task_metadata=task("Clustering"), **AT)
    save_file(state, path)
    encoder.encode([{"text": TEXTS}], task_metadata=task("Clustering"), **AT)


def test_a_folder_is_no_bundled_model(encoder, folder):
    meta = encoder.mteb_model_meta
    assert (meta.name, meta.license, meta.adapted_from) == ("local/model", None, None)


def test_as_many_context_documents_as_the_model_expects(encoder, folder):
    assert encoder.context_size == 8
    meta = encoder.mteb_model_meta
    assert meta.use_instructions
    assert meta.experiment_kwargs == {"attention": "two_way", "semantics": "train", "context_size": 8, "seed": 0}
    with pytest.raises(ContextError, match="expects 8 context documents"):
        CDEForMTEB(folder, context_size=512, device="cpu", dtype="float32")
