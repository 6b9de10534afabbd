"""Reading everything in a collection and comparing it with its checksums."""

from collections import Counter
from collections.abc import Iterator

from cde_rag.errors import StoreFormatError
from cde_rag.stores.base import Damage
from cde_rag.stores.filter_sql import flatten
from cde_rag.stores.manifests import PENDING
from cde_rag.stores.postgres.schema import unescaped
from cde_rag.stores.postgres.tables import RECORD, PgTables, field_row, read_record, read_vector
from cde_rag.stores.postgres.words import live


def find_damage(tables: PgTables) -> Iterator[Damage]:
    """Yield each damaged record and vector; then rows missing from the tables of filters and words."""
    manifest, of = tables.manifest, tables.names
    names = {place: unescaped(str(id_)) for place, id_ in tables.stream(f"SELECT place, id FROM {of.records}")}  # noqa: S608
    elements = f"SELECT place, path, kind, number, value, instant FROM {of.fields}"  # noqa: S608
    fields = sum(map(hash, tables.stream(elements)))
    entries = (
        f"w.term, e.place, e.times FROM {of.words} w {live(of)}"
        if manifest.format > 1
        else f"term, place, times FROM {of.words}"
    )
    words = sum(map(hash, tables.stream(f"SELECT {entries}")))
    for row in tables.stream(f"SELECT place, {RECORD} FROM {of.records} r"):  # noqa: S608
        try:
            record = read_record(*row[1:])
        except StoreFormatError as error:
            yield Damage(row[1], str(error))
            continue
        fields -= sum(hash(field_row(row[0], one)) for one in flatten(record.metadata))
        words -= sum(
            hash((term, row[0], times)) for term, times in Counter(manifest.analyzer.record_terms(record)).items()
        )
    if fields:
        yield Damage("fields", "Expected the metadata of the records, found other. Write it with update_metadata.")
    if words:
        remedy = "cde-rag reindex (store.index_texts()) makes them again."
        yield Damage("words", f"Expected the words of the records, found others. {remedy}")
    for number, _ in manifest.generations:
        lacking = set(names)
        for row in tables.stream(tables.vector_rows(number)):
            lacking.discard(row[0])
            try:
                read_vector(*row)
            except StoreFormatError as error:
                yield Damage(f"{names.get(row[0], row[0])}, generation {number}", str(error))
        if number == manifest.active and PENDING not in manifest.settings:
            for place in sorted(lacking):
                yield Damage(names[place], "Expected a vector, found none. Add the record again.")
