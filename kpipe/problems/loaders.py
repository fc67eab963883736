"""Problems from files, folders, a KernelBench checkout, Parquet, or a Hugging Face data set. All or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kpipe.domain.problem import Problem, Split, validate_source
from kpipe.errors import ProblemError

DEFAULT_DATASET = "ScalingIntelligence/KernelBench"
KERNELBENCH = "kernelbench"
LARGEST = 1 << 20
_LEVEL = re.compile(r"level[_-]?(\d+)", re.I)


def load(
    where: str, *, suite: str | None = None, heldout_every: int = 0, split: Split = "train"
) -> list[Problem]:
    """Whatever `where` is: a path when there is one, else the id of a data set. Raises ProblemError.

    `heldout_every` N > 0 puts every N-th problem into the held-out split, the others into `split`.
    """
    path = Path(where)
    if not path.exists() and (
        path.suffix in (".py", ".parquet") or path.is_absolute() or where.startswith(".")
    ):
        raise ProblemError(f"There is no {where}.", "Check the path.")
    found = load_path(path, suite) if path.exists() else load_dataset(where, suite)
    if heldout_every <= 0:
        return [_with_split(p, split) for p in found]
    return [
        _with_split(p, "heldout" if i % heldout_every == heldout_every - 1 else split)
        for i, p in enumerate(found)
    ]


def load_path(path: Path, suite: str | None = None) -> list[Problem]:
    """One file, a folder of them, a KernelBench checkout (KernelBench/level1 .. level4), or a Parquet file."""
    if path.suffix == ".parquet":
        return _from_rows(_parquet_rows([path]), suite or path.stem)
    if path.is_file():
        return _unique([_from_file(path, suite or path.stem)])
    root = path / "KernelBench" if (path / "KernelBench").is_dir() else path
    if parquet := sorted(root.rglob("*.parquet")):
        return _from_rows(_parquet_rows(parquet), suite or root.name)
    levels = sorted(p for p in root.iterdir() if p.is_dir() and _LEVEL.fullmatch(p.name))
    files = [f for folder in levels or [root] for f in sorted(folder.glob("*.py"), key=_numbered)]
    if not files:
        raise ProblemError(
            f"{path} holds no problems (*.py).", "Give a file, a folder of files, or a KernelBench checkout."
        )
    return _unique(_all_files(files, suite or (KERNELBENCH if levels else root.name)))


def load_dataset(name: str, suite: str | None = None) -> list[Problem]:
    """A Hugging Face data set with columns code, level, name (and problem_id)."""
    try:
        from datasets import load_dataset as fetch
    except ImportError:
        raise ProblemError(
            f"{name} is not a path here, and data sets need the package `datasets`, which is not installed.",
            "Check the path, or: pip install 'kpipe[data]'.",
        ) from None
    try:
        splits = fetch(name)
    except Exception as error:
        raise ProblemError(
            f"The data set {name} cannot be loaded: {str(error).splitlines()[0][:200]}",
            "Check the id and the network, or give a local path (a checkout, a folder, a .parquet file).",
        ) from None
    rows = (row for split in splits.values() for row in split)
    return _from_rows(rows, suite or (KERNELBENCH if name == DEFAULT_DATASET else name.rpartition("/")[2]))


def _with_split(p: Problem, split: Split) -> Problem:
    return Problem(p.suite, p.level, p.name, split, p.source)


def _numbered(path: Path) -> tuple[int, str]:
    """KernelBench's files are numbered: 2_Name comes before 10_Name."""
    number = re.match(r"\d+", path.name)
    return (int(number[0]) if number else 0, path.name)


def _all_files(files: Iterable[Path], suite: str) -> list[Problem]:
    """Raises ProblemError that names every file that is refused, with its reason."""
    found, refused = [], []
    for file in files:
        try:
            found.append(_from_file(file, suite))
        except ProblemError as error:
            refused.append(error)
    if len(refused) == 1:
        raise refused[0]
    if refused:
        reasons = "".join(f"\n  {error.message}" for error in refused)
        raise ProblemError(
            f"{len(refused)} files are refused, and nothing was added:{reasons}",
            "Mend them or move them out of the folder.",
        )
    return found


def _from_file(path: Path, suite: str) -> Problem:
    try:
        if path.stat().st_size > LARGEST:
            raise ProblemError(f"{path} is larger than {LARGEST >> 20} MiB.", "That is no problem file.")
        source = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProblemError(f"{path} is not text (UTF-8).", "Give a Python file.") from None
    except OSError as error:
        raise ProblemError(f"{path} cannot be read ({error.strerror}).", "Check the path.") from None
    validate_source(source, str(path))
    level = _LEVEL.fullmatch(path.parent.name)
    return Problem(suite, int(level[1]) if level else 1, path.stem, "train", source)


def _parquet_rows(paths: Iterable[Path]) -> Iterable[Mapping[str, Any]]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise ProblemError(
            "Parquet files need the package `pyarrow`.", "pip install 'kpipe[data]'."
        ) from None
    rows: list[Mapping[str, Any]] = []
    for path in paths:
        try:
            rows += pq.read_table(path).to_pylist()
        except (OSError, ValueError) as error:
            raise ProblemError(
                f"{path} is not a Parquet file ({str(error)[:120]}).", "Check the file."
            ) from None
    return rows


def _from_rows(rows: Iterable[Mapping[str, Any]], suite: str) -> list[Problem]:
    found = []
    for i, row in enumerate(rows):
        missing = [c for c in ("code", "level", "name") if row.get(c) is None]
        if missing:
            raise ProblemError(
                f"Row {i} of {suite} has no column {', '.join(missing)}.",
                "Expected columns: code, level, name, problem_id.",
            )
        name, source = str(row["name"]), row["code"]
        if not isinstance(source, str):
            raise ProblemError(f"{name}: column code is not text.", "Expected the source of the problem.")
        try:
            level = int(row["level"])
        except (TypeError, ValueError):
            raise ProblemError(
                f"{name}: level {row['level']!r} is not a number.", "Expected 1, 2, 3 ..."
            ) from None
        validate_source(source, name)
        found.append(Problem(suite, level, name, "train", source))
    if not found:
        raise ProblemError(f"{suite} has no rows.", "Give a data set with columns code, level, name.")
    return _unique(found)


def _unique(problems: list[Problem]) -> list[Problem]:
    """Two problems of one name would be taken for each other in every table."""
    seen: set[tuple[int, str]] = set()
    for p in problems:
        if (p.level, p.name) in seen:
            raise ProblemError(
                f"{p.name}: two problems of level {p.level} have this name.", "Rename one of them."
            )
        seen.add((p.level, p.name))
    return problems
