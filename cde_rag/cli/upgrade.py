"""The command upgrade: adopts the newest defaults in a collection that was made with older ones."""

import contextlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cde_rag.cli.collections import CollectionArgument, ModelOption, TenantOption, existing, open_collection
from cde_rag.cli.index_report import print_result, print_skipped
from cde_rag.cli.output import JsonOption, ProgressOption, progress_bar, shown_place, updating
from cde_rag.errors import StoreError

if TYPE_CHECKING:
    from cde_rag.readers import ReadingRules
    from cde_rag.stores.store import Store


def upgrade(
    collection: CollectionArgument,
    backup: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="New folder of the backup. [default: COLLECTION.before-upgrade]"),
    ] = None,
    tenant: TenantOption = None,
    model: ModelOption = None,
    progress: ProgressOption = None,
    as_json: JsonOption = False,
) -> None:
    """Adopt the newest defaults that inspect names; backs the collection up first.

    Reads the files of the collection again from their folders, with the newest splitter and titles, embeds the passages
    that changed in the same context, moves BM25 to the newest analyzer, and measures the scale of hybrid scores.
    Records of tables stay. To go back, restore the backup in place of the collection. If it is interrupted, run
    cde-rag index on the folders to finish.

    \b
    Examples:
      cde-rag inspect docs.faiss  # names newer defaults
      cde-rag upgrade docs.faiss
      # to go back
      rm -r docs.faiss && cde-rag restore docs.faiss.before-upgrade docs.faiss
    """
    from cde_rag.collection.info import newer_defaults
    from cde_rag.readers import RecordReader
    from cde_rag.readers.reading_rules import NEWEST, reading_of
    from cde_rag.search.calibration import CALIBRATION
    from cde_rag.stores.tenant_names import place_key
    from cde_rag.transfer.backup import back_up

    with contextlib.closing(existing(collection, tenant)) as store:
        if not newer_defaults(store):
            typer.echo(f"{shown_place(collection)} has the newest defaults.", err=True)
            return
        if backup is None and "://" in collection:
            raise typer.BadParameter("name a folder for the backup", param_hint="--backup")
        sources, as_text = _sources(store, NEWEST)
        reading = replace(NEWEST, encoding=reading_of(store.manifest().settings).encoding)
        reader = RecordReader(*sources, reading=reading, as_text=as_text, guess_encoding=True)
        whose = "" if tenant is None else f".{place_key(tenant)}"  # a name may have slashes
        place = backup or f"{collection.rstrip('/')}{whose}.before-upgrade"
        with open_collection(store, model) as opened:
            opened.prepare_reader(reader)
            total = sum(1 for _ in reader)  # an unreadable file is named before anything is written
            back_up(store, place)
            typer.echo(f"The backup is in {shown_place(place)}; to go back, restore it.", err=True)
            store.index_texts()
            if CALIBRATION not in store.manifest().settings:
                store.update_settings({CALIBRATION: {}})  # measured after the add, from 64 records on
            with progress_bar("upgrade", "passages", shown=progress) as update:
                update(0, total)
                report = opened.add_records(reader, on_progress=updating(update))
            counts = {**asdict(report), "skipped": reader.skipped}
            documents = opened.count()
    print_skipped(reader)
    print_result(collection, documents, counts, as_json=as_json)


def _sources(store: "Store", reading: "ReadingRules") -> tuple[list[Path], list[str]]:
    """Return the folders and files that a collection's passages were read from, and suffixes that were read as text.

    Raises:
        StoreError: A folder is not there, so that its files cannot be read again.
    """
    from cde_rag.readers.passages import FOLDER_KEY, document_of, file_of, kind_of

    folders, files, suffixes = set[Path](), set[Path](), set[str]()
    for row in store.scroll():
        path = None if document_of(row.record) is None else file_of(row.record.metadata)
        if path is None:
            continue
        folder = row.record.metadata.get(FOLDER_KEY)
        if isinstance(folder, str):
            folders.add(Path(folder))
            if kind_of(Path(path.name), frozenset(), reading) is None:
                suffixes.add(path.suffix.lower() or ".")
        elif path.is_file():
            files.add(path)
    if missing := sorted(str(folder) for folder in folders if not folder.is_dir()):
        raise StoreError(
            f"{store}: expected the folders that its files were read from, found none at {', '.join(missing[:3])}. "
            "Bring them back; or index them from their new place (cde-rag index FOLDER COLLECTION), and upgrade then."
        )
    return sorted(folders | files), sorted(suffixes)
