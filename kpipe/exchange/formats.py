"""Parquet and JSON lines: rows into a file and back, in batches, each value exactly as it was."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from kpipe.errors import StoreError, UsageError
from kpipe.store.portable import BATCH, Field, Row, json_text, line

if TYPE_CHECKING:
    import pyarrow as pa

Format: TypeAlias = Literal["parquet", "jsonl"]
Batches: TypeAlias = Iterable[Sequence[Row]]


def check_usable(format: str) -> Format:
    """The format, which can be written and read here. Raises UsageError for an unknown format, and for Parquet without pyarrow."""
    if format not in _FORMATS:
        raise UsageError(f"There is no format {format!r}.", "Choose --format parquet or --format jsonl.")
    if format == "parquet":
        try:
            import pyarrow.parquet  # noqa: F401
        except ImportError:
            raise UsageError(
                "Parquet files need the package `pyarrow`.",
                "pip install 'kpipe[data]', or write JSON lines with --format jsonl.",
            ) from None
    return cast(Format, format)


def write(path: Path, format: Format, fields: Sequence[Field], batches: Batches) -> int:
    """Write a file; how many rows it has."""
    return _FORMATS[format][0](path, fields, batches)


def read(path: Path, format: Format, fields: Sequence[Field]) -> Iterator[list[Row]]:
    """Rows in batches. Raises StoreError for a file that has not these columns."""
    try:
        yield from _FORMATS[format][1](path, fields)
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        binascii.Error,
    ) as error:  # pyarrow's are ValueErrors
        raise StoreError(
            f"{path} does not hold what its manifest says ({str(error)[:120]}).", "Export the database again."
        ) from None


def _write_lines(path: Path, fields: Sequence[Field], batches: Batches) -> int:
    count = 0
    with path.open("wb") as file:
        for batch in batches:
            file.writelines(line(fields, row) for row in batch)
            count += len(batch)
    return count


def _read_lines(path: Path, fields: Sequence[Field]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    with path.open("rb") as file:
        for text in file:
            named = json.loads(text)
            batch.append(tuple(_parsed(named[field.name], field, _FROM_JSON) for field in fields))
            if len(batch) == BATCH:
                yield batch
                batch = []
    yield batch


def _write_parquet(path: Path, fields: Sequence[Field], batches: Batches) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([pa.field(field.name, arrow_type(field)) for field in fields])
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in batches:
            columns = zip(*batch, strict=True) if batch else [()] * len(fields)
            arrays = [
                pa.array([_parsed(v, field, _TO_ARROW) for v in column], arrow_type(field))
                for field, column in zip(fields, columns, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(batch)
    return count


def _read_parquet(path: Path, fields: Sequence[Field]) -> Iterator[list[Row]]:
    """Row group by row group: `iter_batches` would read ahead, up to the whole file."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for i in range(file.num_row_groups):
            batch = file.read_row_group(i)
            columns = [
                [_parsed(v, field, _FROM_ARROW) for v in batch.column(field.name).to_pylist()]
                for field in fields
            ]
            yield list(zip(*columns, strict=True))


def arrow_type(field: Field) -> pa.DataType:
    import pyarrow as pa

    if field.kind == "records":
        return pa.list_(pa.struct([pa.field(f.name, arrow_type(f)) for f in field.fields]))
    return {
        "integer": pa.int64(),
        "number": pa.float64(),
        "text": pa.string(),
        "json": pa.string(),
        "time": pa.timestamp("us", tz="UTC"),
        "bytes": pa.binary(),
        "integers": pa.list_(pa.int32()),
        "float32s": pa.list_(pa.float32()),
    }[field.kind]


def _parsed(value: Any, field: Field, parsers: dict[str, Callable[[Any], Any]]) -> Any:
    return parsers[field.kind](value) if value is not None and field.kind in parsers else value


_FROM_JSON: dict[str, Callable[[Any], Any]] = {
    "time": datetime.fromisoformat,
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "number": float,
}
_TO_ARROW: dict[str, Callable[[Any], Any]] = {"json": json_text}
_FROM_ARROW: dict[str, Callable[[Any], Any]] = {"json": json.loads}
_FORMATS: dict[str, tuple[Callable[..., int], Callable[..., Iterator[list[Row]]]]] = {
    "parquet": (_write_parquet, _read_parquet),
    "jsonl": (_write_lines, _read_lines),
}
