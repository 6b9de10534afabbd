"""Tables of a collection, in a schema of its own.

manifest     one row: format, dimensions, active generation, settings, counts
generations  a row for each: fingerprint and context
records      a row for each: id, title, text, metadata (as JSON), checksum
fields       the metadata once more, a row for each element, for filters
words        frequencies of terms, for BM25: a row for each term of a write, with arrays of records and frequencies
vectors_<n>  the vectors of generation n, with the digest of the embedded text and a checksum

An entry of `words` counts only if its record is there and has the batch of the row. So a write that replaces or deletes
records changes no array: their entries are dead, since a record that is written again gets another batch. Once the dead
entries have more words than the others, the next write removes them. `index_texts` makes all rows anew, in one batch.

PostgreSQL's text cannot hold the character U+0000. It is stored as U+E000 and the digit 0, and U+E000 itself, which
no script uses, as U+E000 and the letter E.

Every statement names a table in full, and pgvector's types and operators too. Behind a transaction pooler the state of
a session, such as its `search_path`, may be another client's; and PostgreSQL passes over a schema of that path that a
role may not use, and takes the next table of the same name.
"""

import re
from typing import Final

FORMAT: Final = 2  # 1: the settings name no analyzer, and `words` has a row for each term of each record
NUL: Final = "\ue000"

TABLES: Final = """
    CREATE TABLE {schema}.manifest (
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
        run bigint NOT NULL,            -- the run on generations that had the lease last
        batches bigint NOT NULL DEFAULT 0,  -- batch of the records that were written last
        dead bigint NOT NULL DEFAULT 0, -- words of records that were replaced or deleted, and are still in `words`
        store uuid NOT NULL DEFAULT gen_random_uuid(),  -- of this collection and no other of its name
        lease uuid                      -- of the run that had the lease last; a restored database repeats `run`
    );
    CREATE TABLE {schema}.generations (
        number integer PRIMARY KEY,
        fingerprint text NOT NULL,
        context bytea NOT NULL,
        checksum bytea NOT NULL
    );
    CREATE TABLE {schema}.records (
        place bigint PRIMARY KEY,       -- ascends in order of insertion
        id text COLLATE "C" NOT NULL UNIQUE,
        title text NOT NULL,
        text text NOT NULL,
        metadata json NOT NULL,
        length integer NOT NULL,        -- in words
        checksum bytea NOT NULL,
        batch bigint NOT NULL DEFAULT 0 -- of the write that made its entries in `words`
    );
    CREATE TABLE {schema}.fields (
        place bigint NOT NULL,
        path bytea NOT NULL,            -- keys with dots between them, in UTF-8
        kind text COLLATE "C" NOT NULL,
        number numeric,                 -- key of numbers, booleans and null
        value bytea,                    -- key of texts, in UTF-8, which sorts by code point
        instant text COLLATE "C"        -- key of texts that are dates
    );
    CREATE INDEX ON {schema}.fields (place);
    CREATE TABLE {schema}.words (
        term text COLLATE "C" NOT NULL,
        batch bigint NOT NULL,
        places bigint[] NOT NULL,       -- of the records with this term
        times integer[] NOT NULL        -- that each of them has it
    );
    CREATE INDEX ON {schema}.words (term);
"""
PREFIX: Final = 64  # bytes: an index of PostgreSQL takes up to 2 704, and a text may be longer
FIELD_INDEXES: Final = f"""  -- not by hash: a write would read all records that have the same value
    DROP INDEX IF EXISTS {{schema}}.fields_path_idx, {{schema}}.fields_value_idx, {{schema}}.fields_number_idx;
    CREATE INDEX IF NOT EXISTS fields_texts
        ON {{schema}}.fields (substring(path, 1, {PREFIX}), substring(value, 1, {PREFIX}));
    CREATE INDEX IF NOT EXISTS fields_numbers ON {{schema}}.fields (substring(path, 1, {PREFIX}), number);
"""
TOKENS: Final = """  -- of collections that version 0.2 made
    ALTER TABLE {schema}.manifest
        ADD COLUMN IF NOT EXISTS store uuid NOT NULL DEFAULT gen_random_uuid(),
        ADD COLUMN IF NOT EXISTS lease uuid;
"""
FROM_FORMAT_1: Final = """
    ALTER TABLE {schema}.manifest   -- first, as readers begin with it
        ADD COLUMN batches bigint NOT NULL DEFAULT 0,
        ADD COLUMN dead bigint NOT NULL DEFAULT 0;
    ALTER TABLE {schema}.records ADD COLUMN batch bigint NOT NULL DEFAULT 0;
    TRUNCATE {schema}.words;
    ALTER TABLE {schema}.words
        DROP COLUMN place,
        DROP COLUMN times,
        ADD COLUMN batch bigint NOT NULL,
        ADD COLUMN places bigint[] NOT NULL,
        ADD COLUMN times integer[] NOT NULL;
    CREATE INDEX ON {schema}.words (term);
"""
VECTORS: Final = """
    CREATE TABLE {table} (
        place bigint PRIMARY KEY,
        digest text NOT NULL,
        vector {vector}({dim}) NOT NULL,
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


class PgNames:
    """Names in the schema of one collection.

    Args:
        schema: Schema of the collection.
        extension: Schema of pgvector.

    Attributes:
        schema: The quoted name of the collection's schema.
        extension: The quoted name of pgvector's schema.
    """

    def __init__(self, schema: str, extension: str) -> None:
        self.schema: Final = quoted(schema)
        self.extension: Final = quoted(extension)
        self.manifest: Final = self.table("manifest")
        self.generations: Final = self.table("generations")
        self.records: Final = self.table("records")
        self.fields: Final = self.table("fields")
        self.words: Final = self.table("words")

    def table(self, name: str) -> str:
        """Return the name of a table or an index."""
        return f"{self.schema}.{quoted(name)}"

    def vectors(self, generation: int) -> str:
        """Return the name of the table of a generation's vectors."""
        return self.table(f"vectors_{generation}")

    def pgvector(self, name: str) -> str:
        """Return the name of a type, a function or an operator class of pgvector."""
        return f"{self.extension}.{name}"

    def operator(self, symbol: str) -> str:
        """Return an operator of pgvector for use between two operands."""
        return f"OPERATOR({self.extension}.{symbol})"
