"""Make docs/assets/page-search.png and page-chat.png: the page of `cde-rag serve` over this project's guide.

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
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs/assets"
QUERY = "how do I give each customer separate data?"
WIDTH, HEIGHT = 1280, 800
COMMAND = Path(sys.executable).with_name("cde-rag")


def wait_for(port: int, seconds: float = 120) -> None:
    """Return once the server accepts connections; raises TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.5)
    raise TimeoutError(f"The server gave no answer for {seconds:.0f} s. Start cde-rag serve alone to see why.")


def photograph(page: Page, picture: Path) -> None:
    """Write what the page shows as a PNG of 64 colours."""
    shot = page.screenshot()
    Image.open(io.BytesIO(shot)).convert("RGB").quantize(64).save(picture, optimize=True)
    print(picture, picture.stat().st_size, "bytes")


def visit(url: str, query: str) -> None:
    """Search on the page, and ask the same in the chat."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        page.get_by_label("Query").fill(query)
        page.get_by_label("Query").press("Enter")
        expect(page.locator("#hits .right").first).to_be_visible(timeout=120_000)
        photograph(page, ASSETS / "page-search.png")
        page.get_by_role("link", name="Chat").click()
        page.get_by_label("Question").fill(query)
        page.get_by_label("Question").press("Enter")
        expect(page.locator(".sources").first).to_be_visible(timeout=120_000)
        page.evaluate("scrollTo(0, 0)")
        photograph(page, ASSETS / "page-chat.png")
        browser.close()


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
        collection = str(Path(folder) / "guide.faiss")
        subprocess.run([COMMAND, "index", "docs/guide", collection], cwd=ROOT, check=True)
        server = subprocess.Popen([COMMAND, "serve", collection, "--port", str(port)])
        try:
            wait_for(port)
            visit(f"http://127.0.0.1:{port}", query)
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
