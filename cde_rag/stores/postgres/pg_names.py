"""Qualified names of a collection's tables and of pgvector's types and operators.

Every statement names them in full. Behind a transaction pooler the state of a session, such as its `search_path`, may
be another client's; and PostgreSQL passes over a schema of that path that a role may not use, and takes the next table
of the same name.
"""

from typing import Final

from cde_rag.stores.postgres.schema import quoted


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
