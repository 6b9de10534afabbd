"""What is in the wheel: two packages, their typing markers, licences and the bundled models, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import cde_rag
from cde_rag.models.files.model_files import DISTRIBUTIONS
from cde_rag_training.presets import PRESETS, preset_text

ROOT = Path(__file__).resolve().parents[2]
BUNDLED = ROOT / "cde_rag/models/bundled"


def build(source: Path, folder: Path) -> zipfile.ZipFile:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=source, check=True)
    (built,) = folder.iterdir()
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


def test_top_level_names(wheel: zipfile.ZipFile) -> None:
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert top == {"cde_rag", "cde_rag_training", f"cde_rag-{cde_rag.__version__}.dist-info"}


def test_both_packages_are_there_whole(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    for folder in (ROOT / "cde_rag", ROOT / "training/cde_rag_training"):
        files = {path.relative_to(folder.parent) for path in folder.rglob("*.*") if path.is_file()}
        assert {path.as_posix() for path in files if "__pycache__" not in path.parts} <= names
        assert f"{folder.name}/py.typed" in names


def test_licences(wheel: zipfile.ZipFile) -> None:
    assert {Path(name).name for name in wheel.namelist() if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_the_bundled_models_are_there_to_the_byte_and_small(wheel: zipfile.ZipFile) -> None:
    assert {path.name for path in BUNDLED.iterdir()} == {"cde-mini-1", "cde-mini-2", "cde-base-1"}
    for model in ("cde-mini-1", "cde-mini-2", "cde-base-1"):
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            assert wheel.read(f"cde_rag/models/bundled/{model}/{name}") == (BUNDLED / model / name).read_bytes()
    assert sum(info.compress_size for info in wheel.infolist()) <= 90e6


@pytest.mark.long
@pytest.mark.parametrize(
    ("distribution", "more"),
    [("cde-rag-models-legacy", []), ("cde-rag-model-multilingual", ["vocabulary.safetensors"])],
)
def test_other_models_are_in_wheels_of_weights_alone(distribution: str, more: list[str], tmp_path: Path) -> None:
    source = ROOT / "models" / distribution
    built = build(source, tmp_path)
    names = {name for name in built.namelist() if ".dist-info/" not in name}
    files = ("config.json", "model.safetensors", "tokenizer.json", *more)
    models = {name for name, distribution in DISTRIBUTIONS.items() if distribution == source.name}
    folder = distribution.replace("-", "_")
    assert names == {f"{folder}/__init__.py", *(f"{folder}/{model}/{file}" for model in models for file in files)}
    assert all(built.read(name) == (source / name).read_bytes() for name in names)
    (points,) = [name for name in built.namelist() if name.endswith("entry_points.txt")]
    assert {line.split(" = ")[0] for line in built.read(points).decode().splitlines()[1:]} == models
    assert all((source / name).stat().st_size <= 60e6 for name in names)
    assert sum(info.compress_size for info in built.infolist()) <= 90e6


def test_the_commands(wheel: zipfile.ZipFile) -> None:
    entry_points = wheel.read(f"cde_rag-{cde_rag.__version__}.dist-info/entry_points.txt").decode()
    assert "cde-rag = cde_rag.cli:app" in entry_points
    assert "cde-rag-train = cde_rag_training.cli:app" in entry_points


def test_the_recipes(wheel: zipfile.ZipFile) -> None:
    for name in PRESETS:
        assert wheel.read(f"cde_rag_training/presets/{name}.toml").decode() == preset_text(name)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("langchain-cde", "langchain_cde"),
        ("llama-index-embeddings-cde", "llama_index/embeddings/cde"),
        ("llama-index-vector-stores-cde", "llama_index/vector_stores/cde"),
    ],
)
def test_an_integration_carries_its_package_alone(name: str, package: str, tmp_path: Path) -> None:
    names = build(ROOT / "integrations" / name, tmp_path).namelist()
    modules = {path for path in names if ".dist-info/" not in path}
    assert {str(Path(path).parent) for path in modules if path.endswith("__init__.py")} == {package}
    assert all(path.startswith(f"{package}/") for path in modules)
    assert {f"{package}/py.typed"} < modules
    assert any(path.endswith(".dist-info/licenses/LICENSE") for path in names)


def test_haystack_s_three_packages(tmp_path: Path) -> None:
    """Its namespaces have no `__init__`, so that they hold other integrations too."""
    names = {
        name for name in build(ROOT / "integrations/haystack-cde", tmp_path).namelist() if ".dist-info/" not in name
    }
    folders = {"components/embedders/cde", "components/retrievers/cde", "document_stores/cde"}
    expected = {f"haystack_integrations/{folder}" for folder in folders}
    assert {str(Path(name).parent) for name in names} == expected
    assert {f"{folder}/{file}" for folder in expected for file in ("__init__.py", "py.typed")} <= names
