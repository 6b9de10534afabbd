"""PDF files of lines of Courier, without a library."""

import re
from collections.abc import Sequence

_HEIGHT, _LEFT, _LINE, _COLUMN, _SIZE = 400, 20, 14, 110, 9  # points
_ADVANCE = 0.6 * _SIZE  # of each character


def pdf_of(pages: Sequence[Sequence[str | Sequence[str]]], *, by_word: bool = False) -> bytes:
    """Return a PDF of pages of lines; a line that is a sequence has words in each column.

    Args:
        pages: The lines of each page.
        by_word: Each word is set where it stands, and no spaces are, as TeX does.
    """
    objects = ["<</Type/Catalog/Pages 2 0 R>>", "", "<</Type/Font/Subtype/Type1/BaseFont/Courier>>"]
    kids: list[str] = []
    for page in pages:
        shown: list[str] = []
        for number, line in enumerate(page, 2):
            cells = [(line, 0.0)] if isinstance(line, str) else [(cell, _COLUMN * n) for n, cell in enumerate(line)]
            if by_word:
                cells = [
                    (word[0], at + word.start() * _ADVANCE) for cell, at in cells for word in re.finditer(r"\S+", cell)
                ]
            top = _HEIGHT - _LINE * number
            shown += [f"BT /F {_SIZE} Tf {_LEFT + at:.1f} {top} Td ({cell}) Tj ET" for cell, at in cells]
        stream = "\n".join(shown)
        kids.append(f"{len(objects) + 1} 0 R")
        objects.append(
            f"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 {_HEIGHT}]/Contents {len(objects) + 2} 0 R"
            "/Resources<</Font<</F 3 0 R>>>>>>"
        )
        objects.append(f"<</Length {len(stream)}>>stream\n{stream}\nendstream")
    objects[1] = f"<</Type/Pages/Kids[{' '.join(kids)}]/Count {len(kids)}>>"
    body = "".join(f"{number} 0 obj\n{each}\nendobj\n" for number, each in enumerate(objects, 1))
    return f"%PDF-1.4\n{body}trailer<</Root 1 0 R>>\n".encode("latin-1")
