"""Names of files in the folder of a store."""

import re
from typing import Final

DATABASE: Final = "collection.sqlite"
DERIVED: Final = re.compile(r"context-\d+|(vectors|index)-\d+(-[0-9a-f]{8})?")  # what the database refers to, or did
CREATED: Final = re.compile(rf"{re.escape(DATABASE)}-.*|{DERIVED.pattern}")  # by `create`, after the database
