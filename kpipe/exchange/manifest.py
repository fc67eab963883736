"""manifest.json: what an export of the store consists of, so that a cut or changed one is refused."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kpipe.errors import StoreError
from kpipe.exchange.formats import Format, check_usable

NAME = "manifest.json"
KIND = "kpipe-store"
VERSION = 1

_AGAIN = "Export the database again, or copy the directory again."


@dataclass(frozen=True, slots=True)
class File:
    table: str
    name: str
    rows: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    schema: str
    kpipe: str
    format: Format
    runs: list[str] | None
    digest: str
    files: list[File]


def write(folder: Path, manifest: Manifest) -> None:
    content = {"kind": KIND, "version": VERSION, **asdict(manifest)}
    (folder / NAME).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read(folder: Path, schema: str, tables: list[str]) -> Manifest:
    """The manifest of a whole, undamaged export of this `schema`. Raises StoreError."""
    content = _content(folder)
    if content.get("kind") != KIND:
        raise StoreError(
            f"{folder / NAME} is not that of an exported store.", "Name a directory made by `kpipe export`."
        )
    if content.get("version") != VERSION:
        raise StoreError(
            f"{folder} is in version {content.get('version')} of the format; this kpipe reads {VERSION}.",
            "Import it with a newer kpipe.",
        )
    if (theirs := content.get("schema")) != schema:
        raise StoreError(
            f"{folder} holds schema {theirs}, this kpipe has {schema}.",
            "Import it with the kpipe that wrote it, then run `kpipe db upgrade` on that database.",
        )
    manifest = _manifest(folder, content)
    if [file.table for file in manifest.files] != tables:
        raise StoreError(f"{folder / NAME} does not name every table once.", _AGAIN)
    check_usable(manifest.format)
    for file in manifest.files:
        _check_file(folder / file.name, file)
    return manifest


def file_of(folder: Path, table: str, format: Format, rows: int) -> File:
    """What the manifest says of the file of a table."""
    name = file_name(table, format)
    return File(table, name, rows, _sha256(folder / name))


def file_name(table: str, format: Format) -> str:
    return f"{table}.{format}"


def _content(folder: Path) -> dict[str, Any]:
    path = folder / NAME
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} is not an exported store: it has no {NAME}.",
            "Name a directory made by `kpipe export`.",
        ) from None
    except ValueError:
        raise StoreError(f"{path} is damaged.", _AGAIN) from None
    return content if isinstance(content, dict) else {}


def _manifest(folder: Path, content: dict[str, Any]) -> Manifest:
    rest = {name: value for name, value in content.items() if name not in ("kind", "version")}
    try:
        files = [File(**file) for file in rest.pop("files")]
        manifest = Manifest(**rest, files=files)
        named_well = all(file.name == file_name(file.table, manifest.format) for file in files)
    except (KeyError, TypeError):
        named_well = False
    if not named_well:
        raise StoreError(f"{folder / NAME} is damaged.", _AGAIN)
    return manifest


def _check_file(path: Path, file: File) -> None:
    if not path.is_file():
        raise StoreError(f"{path} is missing.", _AGAIN)
    if _sha256(path) != file.sha256:
        raise StoreError(f"{path} is damaged: it is not the file that was exported.", _AGAIN)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
