"""Data sets in the layout of the Hugging Face hub: data/train-*.parquet and a card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kpipe import __version__
from kpipe.errors import UsageError
from kpipe.exchange import formats
from kpipe.exchange.folder import new_folder
from kpipe.exchange.formats import Format
from kpipe.store import belongings, datasets
from kpipe.store.database import Database
from kpipe.store.datasets import Choice
from kpipe.store.portable import Field, Row, json_text

_ABOUT = {
    "turns": "One row per turn: what the policy read and said, the kernel that was made of it, and what became"
    " of it. `prompt_ids`, `completion_ids` and `logprobs` are exactly what the sampler returned.",
    "groups": "One row per group of trajectories on one problem; `turns` lists what was said in it, by member"
    " and turn.",
    "sft": "One row per pair of prompt and suggestion whose kernel was correct and faster than the reference:"
    " columns `prompt` and `completion`, as TRL's SFTTrainer reads them. Held-out problems are left out.",
    "preferences": "One row per two answers to one prompt in one group, the better one and the worse one by"
    " reward: columns `prompt`, `chosen` and `rejected`, as TRL's DPOTrainer reads them. Held-out problems are"
    " left out.",
}
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def export(
    db: Database,
    target: Path,
    what: str,
    format: Format,
    runs: Sequence[str] = (),
    *,
    min_speedup: float = 1.0,
    min_gap: float = 0.0,
) -> int:
    """Write a data set; how many rows it has. Raises StoreError, and UsageError when there is no row."""
    formats.check_usable(format)
    with new_folder(target) as folder:
        (folder / "data").mkdir()
        path = folder / "data" / f"train-00000-of-00001.{format}"
        fields, count = db.read(_write, path, what, format, runs, (min_speedup, min_gap))
        if count == 0:
            raise UsageError(f"There is nothing to export: {what} has no rows.", _ADVICE.get(what, _CHOOSE))
        (folder / "README.md").write_text(card(what, fields, count), encoding="utf-8")
    return count


def _write(
    conn: Any, path: Path, what: str, format: Format, names: Sequence[str], bounds: tuple[float, float]
) -> tuple[tuple[Field, ...], int]:
    runs = belongings.exactly(conn, names) if names else None
    found = datasets.dataset(conn, what, Choice(runs, *bounds))
    fields, batches = _with_json_as_text(found.fields, found.batches)
    return fields, formats.write(path, format, fields, batches)


def _with_json_as_text(
    fields: tuple[Field, ...], batches: Iterator[Sequence[Row]]
) -> tuple[tuple[Field, ...], Iterator[Sequence[Row]]]:
    """A data set's column has one type; what JSON holds differs from row to row."""
    documents = {i for i, field in enumerate(fields) if field.kind == "json"}
    if not documents:
        return fields, batches
    plain = tuple(Field(f.name, "text") if f.kind == "json" else f for f in fields)
    return plain, ([_texted(row, documents) for row in batch] for batch in batches)


def _texted(row: Row, documents: set[int]) -> Row:
    return tuple(
        json_text(value) if i in documents and value is not None else value for i, value in enumerate(row)
    )


def card(what: str, fields: Sequence[Field], count: int) -> str:
    """README.md: how to load the data set, and what is in it."""
    size = next((name for limit, name in _SIZES if count < limit), "n>1M")
    about = _ABOUT.get(what, f"The rows of the view `{what}`.")
    columns = "\n".join(f"| `{field.name}` | {_TYPES[field.kind]} |" for field in fields)
    return f"""---
pretty_name: kpipe {what}
configs:
- config_name: default
  data_files:
  - split: train
    path: data/train-*
size_categories:
- {size}
dataset_info:
  features:
{_features(fields)}
tags:
- kpipe
- gpu-kernels
---

# kpipe {what}

{about}

{count} rows, written by `kpipe export --what {what}` of kpipe {__version__}.

| column | type |
| --- | --- |
{columns}
"""


def _features(fields: Sequence[Field], indent: str = "  ") -> str:
    """The types for the loader, which would guess those of JSON lines from the first rows."""
    lines = []
    for field in fields:
        lines.append(f"{indent}- name: {field.name}")
        if field.kind == "records":
            lines += [f"{indent}  list:", _features(field.fields, f"{indent}  ")]
        else:
            key, type_ = (
                ("list", _LISTS[field.kind]) if field.kind in _LISTS else ("dtype", _DTYPES[field.kind])
            )
            lines.append(f"{indent}  {key}: {type_}")
    return "\n".join(lines)


_CHOOSE = "Choose other runs with --run, or wait until there is something."
_ADVICE = {
    "sft": "Lower --min-speedup.",
    "preferences": "Lower --min-gap, or choose runs whose groups have several answers to one prompt.",
}
_LISTS = {"integers": "int32", "float32s": "float32"}
_DTYPES = {
    "integer": "int64",
    "number": "float64",
    "text": "string",
    "time": "timestamp[us, tz=UTC]",
    "bytes": "binary",
}
_TYPES = {
    **_DTYPES,
    **{kind: f"list of {type_}" for kind, type_ in _LISTS.items()},
    "records": "list of records",
}
