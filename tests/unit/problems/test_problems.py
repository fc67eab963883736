"""The built-in problems, and the loaders for everybody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from sample_problem import GOOD

from kpipe import problems
from kpipe.errors import ProblemError


def module(source: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {}
    exec(compile(source, "problem", "exec"), namespace)
    return namespace


def test_there_are_enough_of_every_kind() -> None:
    found = problems.builtin()
    assert len(found) >= 16
    assert {p.level for p in found} == {1, 2, 3}
    assert {p.split for p in found} == {"train", "heldout"}
    assert {p.level for p in found if p.split == "heldout"} == {1, 2, 3}
    assert len({p.name for p in found}) == len(found)


@pytest.mark.parametrize("problem", problems.builtin(), ids=lambda p: p.name)
def test_each_runs_and_cannot_be_passed_by_a_constant(problem: Any) -> None:
    parts = module(problem.source)
    torch.manual_seed(0)
    model = parts["Model"](*parts["get_init_inputs"]())
    with torch.no_grad():
        first, second = model(*parts["get_inputs"]()), model(*parts["get_inputs"]())
    assert torch.isfinite(first).all()
    assert not torch.allclose(first, torch.zeros_like(first), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(first, second, atol=1e-4, rtol=1e-4), "the inputs do not matter"


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD)
    (only,) = problems.load(str(tmp_path / "mine.py"))
    assert (only.name, only.level, only.suite, only.split) == ("mine", 1, "mine", "train")


def test_a_kernelbench_checkout(tmp_path: Path) -> None:
    for level, count in ((1, 3), (2, 2), (4, 1)):
        folder = tmp_path / "KernelBench" / f"level{level}"
        folder.mkdir(parents=True)
        for i in range(count):
            (folder / f"{i + 9}_Op.py").write_text(GOOD)
    (tmp_path / "setup.py").write_text("raise SystemExit('not a problem, and not read')")
    found = problems.load(str(tmp_path))
    assert [(p.level, p.name) for p in found] == [
        (1, "9_Op"),
        (1, "10_Op"),
        (1, "11_Op"),
        (2, "9_Op"),
        (2, "10_Op"),
        (4, "9_Op"),
    ]
    assert {p.suite for p in found} == {"kernelbench"}


def test_every_nth_is_held_out(tmp_path: Path) -> None:
    for i in range(6):
        (tmp_path / f"{i}_p.py").write_text(GOOD)
    found = problems.load(str(tmp_path), heldout_every=3)
    assert [p.split for p in found] == ["train", "train", "heldout"] * 2


def test_parquet_as_the_hub_keeps_it(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"code": [GOOD, GOOD], "level": [1, 2], "name": ["a", "b"], "problem_id": [1, 2]}
    pq.write_table(pa.table(table), tmp_path / "kb.parquet")
    found = problems.load(str(tmp_path / "kb.parquet"))
    assert [(p.level, p.name, p.source) for p in found] == [(1, "a", GOOD), (2, "b", GOOD)]


def test_parquet_without_the_columns(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["x"]}), tmp_path / "kb.parquet")
    with pytest.raises(ProblemError, match="code, level, name"):
        problems.load(str(tmp_path / "kb.parquet"))
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ProblemError, match=r"broken\.parquet"):
        problems.load(str(tmp_path / "broken.parquet"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def get_inputs(:", "not valid Python"),
        (GOOD.replace("class Model", "class Modell"), "no class Model"),
        (GOOD.replace("def get_inputs", "def inputs"), "get_inputs"),
        (GOOD.replace("def get_init_inputs", "def init"), "get_init_inputs"),
        (GOOD.replace("forward", "run"), "forward"),
        ("x\0y", "NUL"),
        ("", "no class Model"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_reason(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "1_good.py").write_text(GOOD)
    (tmp_path / "2_bad.py").write_text(text)
    with pytest.raises(ProblemError, match=reason) as error:
        problems.load(str(tmp_path))
    assert "2_bad.py" in error.value.message


def test_binary_and_empty(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ProblemError, match=r"a\.py"):
        problems.load(str(tmp_path))
    (tmp_path / "a.py").unlink()
    with pytest.raises(ProblemError, match="no problems"):
        problems.load(str(tmp_path))
