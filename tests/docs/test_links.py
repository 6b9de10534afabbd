"""Links between pages hold in a clone; those to other sites are asked by a program, here for a site of its own."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT, pages  # isort: skip


class Site(BaseHTTPRequestHandler):
    """Answers with the number that the path names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path.strip("/")))
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "docs" / "hooks")
    import links  # type: ignore[import-not-found]

    return links


def test_links_between_pages_hold_in_a_clone() -> None:
    links = [
        (page, link)
        for page in [*pages(), *(ROOT / "examples").glob("*.py")]
        for link in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", page.read_text(encoding="utf-8"))
        if "://" not in link
    ]
    assert len(links) > 100
    assert [(page, link) for page, link in links if not (page.parent / link).exists()] == []


def test_links_that_are_there_and_that_are_not(hook: Any, site: str) -> None:
    assert hook.fault(f"{site}/200") is None
    assert hook.fault(f"{site}/403") is None  # there, and not for programs
    assert hook.fault(f"{site}/404") == "404 Not Found"
    assert "refused" in hook.fault("http://127.0.0.1:9/")


def test_all_pages_are_asked(
    hook: Any, site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"[here]({site}/200) and [gone]({site}/410)\n")
    (tmp_path / "docs" / "faq.md").write_text(f"[gone too]({site}/404), [inside](other.md)\n")
    monkeypatch.setattr(hook, "ROOT", tmp_path)
    assert hook.main() == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed == [
        f"README.md: {site}/410: 410 Gone",
        f"docs/faq.md: {site}/404: 404 Not Found",
        "3 links, 2 of them not there",
    ]
    (tmp_path / "docs" / "faq.md").unlink()
    (tmp_path / "README.md").write_text(f"[here]({site}/200)\n")
    assert hook.main() == 0


def test_pages_of_this_project_have_links_to_other_sites(hook: Any) -> None:
    found = hook.links(hook.pages())
    assert len(found) >= 15
    assert not [link for link in found if " " in link]
