"""Tables of a collection, in a schema of its own.

manifest     one row: format, dimensions, active generation, settings, counts
generations  a row for each: fingerprint and context
records      a row for each: id, title, text, metadata (as JSON), checksum
fields       the metadata once more, a row for each element, for filters
words        how often each record has each term, for BM25
vectors_<n>  the vectors of generation n, with the digest of the embedded text and a checksum

PostgreSQL's text cannot hold the character U+0000. It is stored as U+E000 and the digit 0, and U+E000 itself, which
no script uses, as U+E000 and the letter E.
"""

import re
from typing import Final

FORMAT: Final = 2  # 1: the settings name no analyzer
NUL: Final = "\ue000"

TABLES: Final = """
    CREATE TABLE manifest (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        format integer NOT NULL,
        dim integer NOT NULL,
        active integer NOT NULL,
        last integer NOT NULL,          -- number of the newest generation ever made
        settings json NOT NULL,
        index text,                     -- hnsw, ivfflat or none
        quantization text,              -- half, binary or none
        places bigint NOT NULL,         -- of the record that was inserted last
        texts bigint NOT NULL,          -- records that have words
        words bigint NOT NULL,          -- of all records together
        run bigint NOT NULL             -- the run on generations that had the lease last
    );
    CREATE TABLE generations (
        number integer PRIMARY KEY,
        fingerprint text NOT NULL,
        context bytea NOT NULL,
        checksum bytea NOT NULL
    );
    CREATE TABLE records (
        place bigint PRIMARY KEY,       -- ascends in order of insertion
        id text COLLATE "C" NOT NULL UNIQUE,
        title text NOT NULL,
        text text NOT NULL,
        metadata json NOT NULL,
        length integer NOT NULL,        -- in words
        checksum bytea NOT NULL
    );
    CREATE TABLE fields (
        place bigint NOT NULL,
        path bytea NOT NULL,            -- keys with dots between them, in UTF-8
        kind text COLLATE "C" NOT NULL,
        number numeric,                 -- key of numbers, booleans and null
        value bytea,                    -- key of texts, in UTF-8, which sorts by code point
        instant text COLLATE "C"        -- key of texts that are dates
    );
    CREATE INDEX ON fields (place);
    CREATE INDEX ON fields USING hash (path);
    CREATE INDEX ON fields USING hash (value);
    CREATE INDEX ON fields (number);
    CREATE TABLE words (
        term text COLLATE "C" NOT NULL,
        place bigint NOT NULL,
        times integer NOT NULL,
        PRIMARY KEY (term, place)
    );
"""
VECTORS: Final = """
    CREATE TABLE vectors_{number} (
        place bigint PRIMARY KEY,
        digest text NOT NULL,
        vector vector({dim}) NOT NULL,
        checksum bytea NOT NULL
    );
"""
_ESCAPED: Final = re.compile(f"{NUL}([0E])")


def escaped(text: str) -> str:
    """Return a text without U+0000, for a column."""
    return text.replace(NUL, f"{NUL}E").replace("\0", f"{NUL}0") if NUL in text or "\0" in text else text


def unescaped(text: str) -> str:
    """Return the text of a column."""
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else NUL, text) if NUL in text else text


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
