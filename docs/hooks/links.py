"""Links to other sites: asks each whether it is there. Needs the network, so it is no part of the tests.

python docs/hooks/links.py    prints those that are not there; exit code 1 if there are any
"""

import re
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\((https?://[^)\s]+)\)")
REFUSED = (HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)  # what is there, and not for programs
SECONDS = 20.0
AT_ONCE = 8


def links(pages: Iterable[Path]) -> dict[str, Path]:
    """Each link, and a page that it is on."""
    return {link: page for page in pages for link in LINK.findall(page.read_text(encoding="utf-8"))}


def pages() -> list[Path]:
    """All that people read, notebooks included."""
    places = ("*.md", "docs/**/*.md", "lab/**/*.md", "examples/*.md", "examples/*.py", "integrations/*/README.md")
    return sorted(path for place in places for path in ROOT.glob(place))


def fault(link: str) -> str | None:
    """What is wrong with a link; None where nothing is."""
    try:
        with urlopen(Request(link, headers={"User-Agent": "Mozilla/5.0"}), timeout=SECONDS):
            return None
    except HTTPError as error:
        return None if error.code in REFUSED else f"{error.code} {error.reason}"
    except (URLError, TimeoutError, OSError) as error:
        return str(error)


def main() -> int:
    """Ask all of them."""
    found = links(pages())
    with ThreadPoolExecutor(AT_ONCE) as threads:
        faults = dict(zip(found, threads.map(fault, found), strict=True))
    dead = {link: why for link, why in faults.items() if why is not None}
    for link, why in dead.items():
        print(f"{found[link].relative_to(ROOT)}: {link}: {why}")
    print(f"{len(found)} links, {len(dead)} of them not there")
    return bool(dead)


if __name__ == "__main__":
    sys.exit(main())
