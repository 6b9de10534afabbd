"""Redirects: a page at each old address of the site, which leads to the new one.

`redirects.csv` next to this module has a line for each: `old,new`, paths below the site's root; the new one may have an
anchor. Whoever moves or removes a page adds a line there.
"""

import csv
import posixpath
from pathlib import Path

TABLE = Path(__file__).with_name("redirects.csv")
PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Moved</title>
<meta name="robots" content="noindex">
<link rel="canonical" href="{link}">
<meta http-equiv="refresh" content="0; url={link}">
<p>This page is now <a href="{link}">{new}</a>.</p>
"""


def redirects(table: Path = TABLE) -> dict[str, str]:
    """Return the new address of each old one."""
    with table.open(encoding="utf-8", newline="") as lines:
        return {row["old"]: row["new"] for row in csv.DictReader(lines)}


def write(site: Path, moved: dict[str, str]) -> None:
    """Write the pages into a built site.

    Raises:
        ValueError: If an old address has a page, or a new one has none.
    """
    for old, new in moved.items():
        elsewhere = "://" in new
        if not elsewhere and not (site / new.partition("#")[0]).is_file():
            raise ValueError(f"The site has no page {new}, to which {TABLE.name} leads from {old}. Correct that line.")
        if (site / old).exists():
            raise ValueError(f"The site has a page at the old address {old}. Remove its line from {TABLE.name}.")
        (site / old).parent.mkdir(parents=True, exist_ok=True)
        link = new if elsewhere else posixpath.relpath(new, posixpath.dirname(old) or ".")
        (site / old).write_text(PAGE.format(link=link, new=new), encoding="utf-8")
