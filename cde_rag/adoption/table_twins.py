"""Twins of PostgreSQL's tables: one of the same rows and columns in another schema, and their exchange.

A twin has everything of a table that is not one of its rows: columns with their defaults, checks, indexes, rights,
settings and comment. Foreign keys, triggers and policies go to the table in use alone: those of its twin would act on
what the application writes. Calls are made within a transaction of the caller.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from cde_rag.errors import require

_RELATION: Final = (
    "SELECT c.oid::bigint, n.nspname::text, c.relname::text "
    "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
)
_COLUMNS: Final = """
    SELECT attname::text, t.typname::text, format_type(atttypid, -1), atttypmod, attgenerated <> '', attidentity <> ''
    FROM pg_attribute a JOIN pg_type t ON t.oid = atttypid
    WHERE attrelid = %s::oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_KEY: Final = """
    SELECT array(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
                 WHERE place <= i.indnkeyatts ORDER BY place)
    FROM pg_index i
    WHERE i.indrelid = %s::oid AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL
      AND i.indexprs IS NULL AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = i.indrelid
      AND a.attnum = ANY (i.indkey::int2[]) AND NOT a.attnotnull)
    ORDER BY i.indisprimary DESC, i.indexrelid LIMIT 1
"""
_OBSTACLE: Final = """
    SELECT 'a partitioned, inherited, typed or unlogged table, or a view' FROM pg_class c
    WHERE oid = %(oid)s::oid AND (relkind <> 'r' OR relpersistence <> 'p' OR relispartition OR reloftype <> 0
      OR EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent)))
    UNION ALL SELECT 'row security, which hides rows from this role' WHERE row_security_active(%(oid)s::oid)
    UNION ALL SELECT 'a replica identity' FROM pg_class WHERE oid = %(oid)s::oid AND relreplident <> 'd'
    UNION ALL SELECT pg_describe_object(classid, objid, 0) FROM pg_depend
    WHERE refclassid = 'pg_class'::regclass AND refobjid = %(oid)s::oid AND deptype = 'n'
      AND classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass)
    UNION ALL SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend
    JOIN pg_type t ON t.typrelid = %(oid)s::oid AND refobjid IN (t.oid, t.typarray)
    WHERE refclassid = 'pg_type'::regclass AND deptype = 'n'
    UNION ALL SELECT format('the foreign key %%s of %%s', conname, conrelid::regclass) FROM pg_constraint
    WHERE confrelid = %(oid)s::oid
    UNION ALL SELECT format('the publication %%s', pubname) FROM pg_publication_tables
    WHERE to_regclass(format('%%I.%%I', schemaname, tablename)) = %(oid)s::oid
    UNION ALL SELECT format('the constraint %%s', conname) FROM pg_constraint
    WHERE conrelid = %(oid)s::oid AND contype NOT IN ('p', 'u', 'f', 'c', 'n')
    UNION ALL SELECT format('rights on the column %%s', attname) FROM pg_attribute
    WHERE attrelid = %(oid)s::oid AND attacl IS NOT NULL AND NOT attisdropped
    UNION ALL SELECT format('the trigger %%s, which is not always on', tgname) FROM pg_trigger
    WHERE tgrelid = %(oid)s::oid AND NOT tgisinternal AND tgenabled <> 'O'
    UNION ALL SELECT format('the statistics %%s', stxname) FROM pg_statistic_ext WHERE stxrelid = %(oid)s::oid
    UNION ALL SELECT format('the index %%s, on an expression of the vectors', indexrelid::regclass)
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = indrelid AND attname = %(vector)s
    WHERE indrelid = %(oid)s::oid AND NOT a.attnum = ANY (indkey::int2[]) AND EXISTS (SELECT FROM pg_depend d
      WHERE d.classid = 'pg_class'::regclass AND d.objid = indexrelid AND d.refobjid = indrelid
      AND d.refobjsubid = a.attnum)
    LIMIT 1
"""
_OPERATORS: Final = """
    SELECT o.opcname::text FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attname = %(vector)s
    JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(number, place) ON k.number = a.attnum
    JOIN LATERAL unnest(i.indclass::oid[]) WITH ORDINALITY s(class, place) ON s.place = k.place
    JOIN pg_opclass o ON o.oid = s.class WHERE i.indrelid = %(oid)s::oid ORDER BY i.indexrelid
"""
_INDEXES: Final = """
    SELECT c.relname::text, pg_get_indexdef(indexrelid), pg_get_constraintdef(con.oid)
    FROM pg_index JOIN pg_class c ON c.oid = indexrelid
    LEFT JOIN pg_constraint con ON con.conindid = indexrelid AND con.conrelid = indrelid AND con.contype IN ('p', 'u')
    WHERE indrelid = %s::oid ORDER BY c.relname
"""
_FOREIGN_KEYS: Final = (
    "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = %s::oid AND contype = 'f'"
)
_UNCHECKED: Final = "SELECT conname::text FROM pg_constraint WHERE conrelid = %s::oid AND NOT convalidated"
_TRIGGERS: Final = """
    SELECT tgname::text, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = %s::oid AND NOT tgisinternal
"""
_POLICIES: Final = """
    SELECT polname::text, format('AS %%s FOR %%s TO %%s',
        CASE WHEN polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
        CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
            ELSE 'ALL' END,
        (SELECT string_agg(CASE whose WHEN 0 THEN 'PUBLIC' ELSE whose::regrole::text END, ', ')
         FROM unnest(polroles) whose)),
        coalesce(' USING (' || pg_get_expr(polqual, polrelid) || ')', ''),
        coalesce(' WITH CHECK (' || pg_get_expr(polwithcheck, polrelid) || ')', '')
    FROM pg_policy WHERE polrelid = %s::oid
"""
_SECURED: Final = "SELECT relrowsecurity, relforcerowsecurity FROM pg_class WHERE oid = %s::oid"
_SEQUENCES: Final = """
    SELECT s.relnamespace::regnamespace::text, s.relname::text, a.attname::text FROM pg_depend d
    JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
    JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
    WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s::oid
      AND d.deptype = 'a'
"""
_RIGHTS: Final = """
    SELECT privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, is_grantable
    FROM pg_class c, aclexplode(c.relacl) WHERE c.oid = %s::oid AND grantee <> relowner
"""
_SETTINGS: Final = """
    SELECT array_to_string(reloptions, ', '), relowner::regrole::text,
           relowner <> (SELECT oid FROM pg_roles WHERE rolname = current_user)
    FROM pg_class WHERE oid = %s::oid
"""


class Relation(NamedTuple):
    """A table.

    Attributes:
        oid: Its number, which stays when its schema changes.
        schema: Name of its schema.
        name: Its own name.
    """

    oid: int
    schema: str
    name: str


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Its name.
        kind: Name of its type.
        type: The type as SQL has it, without a length.
        length: Length of the type; -1 without one.
        generated: True if it is computed.
        identity: True if PostgreSQL numbers it.
    """

    name: str
    kind: str
    type: str
    length: int
    generated: bool
    identity: bool


class TableTwins:
    """Tables of a database, and twins of them.

    Args:
        connection: Connection of psycopg.
    """

    def __init__(self, connection: Any) -> None:
        self._sql: Any = require("psycopg", "postgres").sql
        self._connection = connection

    def named(self, relation: Relation) -> Any:
        """Return the name of a table for a statement."""
        return self._sql.Identifier(relation.schema, relation.name)

    def at(self, *name: str) -> Relation | None:
        """Return the table of a name, with its schema before it or not; None if there is none."""
        place = self._sql.Identifier(*name).as_string(self._connection)
        found = self._one(f"{_RELATION} WHERE c.oid = to_regclass(%s)", place)
        return None if found is None else Relation(*found)

    def of(self, oid: int) -> Relation | None:
        """Return the table of a number; None if there is none."""
        found = self._one(f"{_RELATION} WHERE c.oid = %s::oid", oid)
        return None if found is None else Relation(*found)

    def columns(self, relation: Relation) -> list[Column]:
        """Return the columns, in their order."""
        return [Column(*row) for row in self._all(_COLUMNS, relation.oid)]

    def key(self, relation: Relation) -> list[str]:
        """Return the columns of the primary key, or of another one that no row lacks; none without one."""
        found = self._one(_KEY, relation.oid)
        return [] if found is None else list(found[0])

    def obstacle(self, relation: Relation, vector: str) -> str | None:
        """Return something that a twin would not have, or that would not go on with it; None if there is nothing."""
        given = {"oid": relation.oid, "vector": vector}
        found = self._connection.execute(_OBSTACLE, given).fetchone()
        return None if found is None else str(found[0])

    def operators(self, relation: Relation, vector: str) -> list[str]:
        """Return the operator classes of indexes on the vectors, such as `vector_cosine_ops`."""
        given = {"oid": relation.oid, "vector": vector}
        return [name for (name,) in self._connection.execute(_OPERATORS, given)]

    def comment(self, relation: Relation) -> str | None:
        """Return the comment of a table."""
        return self._one("SELECT obj_description(%s::oid, 'pg_class')", relation.oid)[0]

    def put_comment(self, relation: Relation, text: str) -> None:
        """Replace the comment of a table."""
        self.run("COMMENT ON TABLE {} IS {}", self.named(relation), self._sql.Literal(text))

    def create(self, live: Relation, schema: str, vector: Column, dim: int) -> Relation:
        """Create a twin without rows and indexes, with vectors of another length, if they have one."""
        twin, length = Relation(0, schema, live.name), f"({dim})" if vector.length > 0 else ""
        self.run("CREATE TABLE {} (LIKE {} INCLUDING ALL EXCLUDING INDEXES)", self.named(twin), self.named(live))
        kind = self._sql.SQL(vector.type + length)
        self.run("ALTER TABLE {} ALTER COLUMN {} TYPE {}", self.named(twin), self._sql.Identifier(vector.name), kind)
        options, owner, is_other = self._one(_SETTINGS, live.oid)
        if options:
            self.run("ALTER TABLE {} SET ({})", self.named(twin), self._sql.SQL(options))
        for right, whose, grantable in self._all(_RIGHTS, live.oid):
            more = " WITH GRANT OPTION" if grantable else ""
            parts = [self._sql.SQL(part) for part in (right, whose, more)]
            self.run("GRANT {} ON {} TO {}{}", parts[0], self.named(twin), *parts[1:])
        if (comment := self.comment(live)) is not None:
            self.put_comment(twin, comment)
        if is_other:
            self.run("ALTER TABLE {} OWNER TO {}", self.named(twin), self._sql.SQL(owner))
        made = self.at(schema, live.name)
        assert made is not None
        return made

    def index(self, live: Relation, twin: Relation) -> None:
        """Create the indexes that a twin lacks, by their names and definitions, and its statistics."""
        there = {name for name, *_ in self._all(_INDEXES, twin.oid)}
        for name, definition, constraint in self._all(_INDEXES, live.oid):
            if name in there:
                continue
            own = self._sql.Identifier(name)
            if constraint is not None:
                self.run("ALTER TABLE {} ADD CONSTRAINT {} {}", self.named(twin), own, self._sql.SQL(constraint))
                continue
            head, _, rest = definition.partition(" USING ")
            unique = self._sql.SQL("UNIQUE " if head.startswith("CREATE UNIQUE ") else "")
            self.run("CREATE {}INDEX {} ON {} USING {}", unique, own, self.named(twin), self._sql.SQL(rest))
        self.run("ANALYZE {}", self.named(twin))

    def shape(self, relation: Relation, vector: str) -> list[Column]:
        """Return the columns, which twins have in common, but for the length of the vectors."""
        return [each._replace(length=0) if each.name == vector else each for each in self.columns(relation)]

    def exchange(self, out: Relation, coming: Relation, away: str) -> None:
        """Put a twin in the place of the table in use, and that into another schema.

        Args:
            out: Table in use.
            coming: Its twin.
            away: Schema that the table goes to; it is made.
        """
        sql, table = self._sql, self.named(out)
        foreign_keys, triggers = self._all(_FOREIGN_KEYS, out.oid), self._all(_TRIGGERS, out.oid)
        policies, (is_secured, is_forced) = self._all(_POLICIES, out.oid), self._one(_SECURED, out.oid)
        found = self._all(_SEQUENCES, out.oid)
        sequences = [(sql.SQL(schema), sql.Identifier(name), column) for schema, name, column in found]
        self.run("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", table)
        numbers = self._numbers(out)
        for name, _ in foreign_keys:
            self.run("ALTER TABLE {} DROP CONSTRAINT {}", table, sql.Identifier(name))
        for name, _ in triggers:
            self.run("DROP TRIGGER {} ON {}", sql.Identifier(name), table)
        for name, *_ in policies:
            self.run("DROP POLICY {} ON {}", sql.Identifier(name), table)
        for schema, name, _ in sequences:
            self.run("ALTER SEQUENCE {}.{} OWNED BY NONE", schema, name)
        self.run("CREATE SCHEMA IF NOT EXISTS {}", sql.Identifier(away))
        self.run("ALTER TABLE {} SET SCHEMA {}", table, sql.Identifier(away))
        self.run("ALTER TABLE {} SET SCHEMA {}", self.named(coming), sql.Identifier(out.schema))
        for schema, name, column in sequences:
            self.run("ALTER SEQUENCE {}.{} OWNED BY {}", schema, name, sql.Identifier(out.schema, out.name, column))
        for name, definition in foreign_keys:
            made = sql.SQL(definition.removesuffix(" NOT VALID"))  # its rows are looked at later, without the lock
            self.run("ALTER TABLE {} ADD CONSTRAINT {} {} NOT VALID", table, sql.Identifier(name), made)
        for name, *parts in policies:
            self.run("CREATE POLICY {} ON {} {}", sql.Identifier(name), table, sql.SQL("".join(parts)))
        secured = ("ENABLE" if is_secured else "DISABLE", "FORCE" if is_forced else "NO FORCE")
        self.run("ALTER TABLE {} {} ROW LEVEL SECURITY, {} ROW LEVEL SECURITY", table, *map(sql.SQL, secured))
        for _, definition in triggers:  # which names the table by its place
            self._connection.execute(definition)
        for column, last, is_called in numbers:
            place = table.as_string(self._connection)
            self._one("SELECT setval(pg_get_serial_sequence(%s, %s), %s, %s)", place, column, last, is_called)

    def unchecked(self, relation: Relation) -> list[str]:
        """Return the names of foreign keys and checks whose rows were not looked at."""
        return [name for (name,) in self._all(_UNCHECKED, relation.oid)]

    def check_rows(self, relation: Relation, constraint: str) -> None:
        """Look at the rows of a constraint; one that does not hold for all stays unchecked."""
        errors: Any = require("psycopg", "postgres").errors
        with suppress(errors.ForeignKeyViolation, errors.CheckViolation), self._connection.transaction():
            self.run("ALTER TABLE {} VALIDATE CONSTRAINT {}", self.named(relation), self._sql.Identifier(constraint))

    def run(self, statement: str, *parts: Any) -> None:
        """Execute a statement with names and parts in it."""
        self._connection.execute(self._sql.SQL(statement).format(*parts))

    def _numbers(self, relation: Relation) -> list[tuple[str, int, bool]]:
        """Return the columns that PostgreSQL numbers, with the last number, and True if that was given."""
        found: list[tuple[str, int, bool]] = []
        place = self.named(relation).as_string(self._connection)
        for column in self.columns(relation):
            if column.identity:
                (sequence,) = self._one("SELECT pg_get_serial_sequence(%s, %s)", place, column.name)
                query = self._sql.SQL("SELECT last_value, is_called FROM {}").format(self._sql.SQL(sequence))
                found.append((column.name, *self._one(query)))
        return found

    def _one(self, query: Any, *values: Any) -> Any:
        return self._connection.execute(query, values or None).fetchone()

    def _all(self, query: str, *values: Any) -> Sequence[Any]:
        return self._connection.execute(query, values).fetchall()
