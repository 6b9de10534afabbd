"""Models in packages of their own: found by entry point without an import, and named where they are missing."""

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from tiny import tiny_network, tiny_tokenizer

from cde_rag import CDEModel, Collection, ContextualEmbedder
from cde_rag.errors import ModelError
from cde_rag.models.files import model_files
from cde_rag.models.files.names import ModelName
from cde_rag.models.loading import ModelSource
from cde_rag.models.one_way import checkpoint as checkpoints


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with the model `tiny`, which raises on import."""
    folder = tmp_path / "tiny_models"
    checkpoints.write(folder / "tiny", tiny_network(), tiny_tokenizer())
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    register(monkeypatch, EntryPoint("tiny", "tiny_models", model_files.GROUP))
    return str(folder)


def register(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(model_files, "_registered", lambda: list(points))


def test_a_model_of_another_package_is_found_by_its_name(package: str) -> None:
    model = CDEModel.from_pretrained("tiny", device="cpu")
    assert str(model.folder) == f"{package}/tiny"
    assert "tiny_models" not in sys.modules
    assert "tiny" in model_files.packaged_names()


def test_a_collection_opens_with_it_and_says_what_to_install_where_it_is_gone(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = tiny_network()
    object.__setattr__(network.config, "name", "tiny")
    checkpoints.write(Path(package) / "tiny", network, tiny_tokenizer())
    texts = [f"note {number}" for number in range(80)]
    embedder = ContextualEmbedder.from_corpus(texts, model="tiny")
    with Collection.create(tmp_path / "notes.faiss", embedder) as notes:
        notes.add(texts)
        expected = [hit.id for hit in notes.search("note 7", k=3)]
    with Collection.open(tmp_path / "notes.faiss") as notes:
        assert [hit.id for hit in notes.search("note 7", k=3)] == expected
    register(monkeypatch)
    monkeypatch.setitem(model_files.DISTRIBUTIONS, "tiny", "tiny-models")
    with pytest.raises(ModelError, match=r"made with the model 'tiny'.*pip install tiny-models"):
        Collection.open(tmp_path / "notes.faiss")


def test_the_first_model_is_in_a_package_that_an_error_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkpoints.find("cde-mini-0").parent.name == "cde_rag_models_legacy"
    register(monkeypatch)
    with pytest.raises(ModelError, match=r"in a clone: pip install \./models/cde-rag-models-legacy"):
        CDEModel.from_pretrained("cde-mini-0")
    with pytest.raises(ModelError, match="pip install cde-rag-models-legacy"):
        ModelSource.find(ModelName(base="cde-mini-0"))


def test_a_registered_package_that_is_gone_or_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("tiny", package, model_files.GROUP) for package in ("gone_models", "other_models")]
    register(monkeypatch, points[0])
    with pytest.raises(ModelError, match="'gone_models', which is not there"):
        checkpoints.find("tiny")
    register(monkeypatch, *points)
    with pytest.raises(ModelError, match=r"Expected one package .* gone_models, other_models; remove one"):
        checkpoints.find("tiny")


@pytest.mark.parametrize("name", ["../cde-mini-1", "cde-mini-1/", "/cde-mini-1", ""])
def test_a_path_is_no_name(name: str) -> None:
    assert model_files.packaged(name) is None
