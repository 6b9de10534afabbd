"""Make docs/assets/page-search.png: the page of `cde-rag serve` over a part of this Python's documentation.

Needs the browser chromium. Run with: python tools/page_picture.py [--query …]
"""

import argparse
import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect, sync_playwright

from cde_rag import Collection, ContextualEmbedder
from cde_rag.evaluation.demo_corpus import MODULES, PARENT_KEY, documentation
from cde_rag.records import embedded_text

PICTURE = Path(__file__).resolve().parents[1] / "docs/assets/page-search.png"
QUERY = "How do I make text safe to show in a web page, with < and & in it?"
WIDTH, HEIGHT = 1280, 760
COMMAND = Path(sys.executable).with_name("cde-rag")


def index(folder: Path) -> None:
    """Make a collection of the demo's modules."""
    records = list(documentation(MODULES))
    embedder = ContextualEmbedder.from_corpus(map(embedded_text, records), seed=0)
    with Collection.create(str(folder), embedder, parent_key=PARENT_KEY) as collection:
        collection.add_records(records)


def wait_for(port: int, seconds: float = 120) -> None:
    """Return once the server accepts connections; raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise TimeoutError(f"The server gave no answer for {seconds:.0f} s. Start cde-rag serve alone to see why.")


def photograph(url: str, query: str, picture: Path) -> None:
    """Search on the page, point at the first hit, and write a PNG of 64 colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        page.get_by_label("Query").fill(query)
        page.get_by_label("Query").press("Enter")
        expect(page.locator("#column-hybrid .right").first).to_be_visible(timeout=120_000)
        page.locator("#column-own .open").first.hover()
        shot = page.screenshot()
        browser.close()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(64).save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", default=QUERY)
    query = parser.parse_args().query
    if shutil.which("chromium") is None:
        sys.exit("Expected the browser chromium on the path; found none. Install it (Debian: apt install chromium).")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        collection = Path(folder) / "python.faiss"
        index(collection)
        server = subprocess.Popen([COMMAND, "serve", str(collection), "--port", str(port)])
        try:
            wait_for(port)
            photograph(f"http://127.0.0.1:{port}", query, PICTURE)
        finally:
            server.terminate()
            server.wait()
    print(PICTURE, PICTURE.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
