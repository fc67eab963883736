"""A store as a directory of files, one per table, and back: an import gives an equal store."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kpipe import __version__
from kpipe.domain.names import check_run_name
from kpipe.errors import StoreError
from kpipe.exchange import formats, manifest
from kpipe.exchange.folder import new_folder
from kpipe.exchange.formats import Format
from kpipe.exchange.manifest import Manifest
from kpipe.store import belongings, copying, portable, schema
from kpipe.store.database import Database
from kpipe.store.portable import Row


def export(db: Database, target: Path, format: Format, runs: Sequence[str] = ()) -> Manifest:
    """Write what belongs to the named runs, or everything, as it is at this moment.

    A run brings those whose turns it was trained on. Raises StoreError, UsageError.
    """
    formats.check_usable(format)
    with new_folder(target) as folder:
        written = db.read(_export, folder, format, runs)
        manifest.write(folder, written)
    return written


def import_(source: Path, url: str) -> tuple[str, Manifest]:
    """Fill the empty database at `url`, made when it is not there; its name, and what was imported.

    Nothing is kept unless all of it arrives as it was. Raises StoreError.
    """
    found = manifest.read(source, schema.revisions()[-1], portable.tables())
    column = [field.name for field in portable.fields("run")].index("name")
    for batch in _rows(source, found, "run"):
        for row in batch:
            check_run_name(str(row[column]))
    with copying.open_target(url) as db:
        copying.fill(db, lambda table: _rows(source, found, table), found.digest)
        return db.name, found


def _export(conn: Any, folder: Path, format: Format, names: Sequence[str]) -> Manifest:
    runs = belongings.ids(conn, names) if names else None
    sha, files = hashlib.sha256(), []
    for table in portable.tables():
        fields = portable.fields(table)

        def digested(table: str = table) -> Iterator[list[Row]]:
            for batch in portable.rows(conn, table, runs):
                for row in batch:
                    sha.update(portable.line(portable.fields(table), row))
                yield batch

        path = folder / manifest.file_name(table, format)
        files.append(manifest.file_of(folder, table, format, formats.write(path, format, fields, digested())))
    taken = None if runs is None else belongings.names(conn, runs)
    return Manifest(schema.revisions()[-1], __version__, format, taken, sha.hexdigest(), files)


def _rows(folder: Path, found: Manifest, table: str) -> Iterator[list[Row]]:
    """Raises StoreError when the file has another number of rows than the manifest says."""
    (file,) = (file for file in found.files if file.table == table)
    count = 0
    for batch in formats.read(folder / file.name, found.format, portable.fields(table)):
        count += len(batch)
        yield batch
    if count != file.rows:
        raise StoreError(
            f"{folder / file.name} has {count} rows, the manifest says {file.rows}.",
            "Export the database again.",
        )
