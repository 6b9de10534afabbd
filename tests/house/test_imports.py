"""What an import brings in, seen from a fresh interpreter."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("faiss", "numpy", "sentence_transformers", "sqlite3", "tokenizers", "torch", "transformers", "typer")


def loaded_by(statement: str, folder: Path) -> set[str]:
    """Those of the heavy packages that a fresh interpreter has loaded after one statement."""
    code = f"import sys; {statement}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    return set(subprocess.check_output([sys.executable, "-c", code], cwd=folder, text=True).split())


def test_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    assert loaded_by("import cde_rag, cde_rag_training", tmp_path) == set()


@pytest.mark.parametrize(
    "module", ["stores.base", "context.context", "context.sampling", "context.siblings", "records"]
)
def test_the_core_below_the_model_loads_no_torch(module: str, tmp_path: Path) -> None:
    assert loaded_by(f"import cde_rag.{module}", tmp_path) <= {"numpy"}


def test_a_collection_loads_no_torch_before_its_model(tmp_path: Path) -> None:
    statement = "from cde_rag import Canary, Collection, Hit, Record, Tenants"
    assert "torch" not in loaded_by(statement, tmp_path)


@pytest.mark.parametrize("module", ["evaluation", "cli.demo", "evaluation.hybrid_weight"])
def test_demo_evaluate_and_tune_need_no_torch(module: str, tmp_path: Path) -> None:
    assert "torch" not in loaded_by(f"import cde_rag.{module}", tmp_path)


def test_help_is_cheap(tmp_path: Path) -> None:
    assert "torch" not in loaded_by("import cde_rag.cli", tmp_path)


@pytest.mark.parametrize("name", ["examples", "integrations", "lab", "tests", "training"])
def test_an_installation_offers_no_folder_of_the_repository(name: str, tmp_path: Path) -> None:
    code = (
        f"import importlib.util as u; found = u.find_spec({name!r}); print(found and found.submodule_search_locations)"
    )
    assert str(ROOT) not in subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, text=True)
