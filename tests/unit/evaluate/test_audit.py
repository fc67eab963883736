"""What is wrong with a problem is found by running it; what is right is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kpipe import problems
from kpipe.cli.app import app
from kpipe.config import EvaluateConfig
from kpipe.domain.problem import Problem
from kpipe.evaluate.audit import Audit, audit

MODEL = """
import torch

class Model(torch.nn.Module):
    def forward(self, x, y):
        return {answer}

def get_inputs():
    return [{x}, torch.rand(8, 16)]

def get_init_inputs():
    return []
"""


def audited(answer: str, x: str = "torch.randn(8, 16)", *, compiled: bool = False) -> Audit:
    source = MODEL.format(answer=answer, x=x)
    return audit(Problem("made-up", 1, "one", "train", source), EvaluateConfig(), compiled=compiled)


@pytest.mark.parametrize(
    ("answer", "rules"),
    [
        ("x * y", []),
        ("(x * y, (x > y).long())", []),
        ("(x * y) * 1e-6", ["zeros_pass"]),
        ("torch.softmax(x * 1e-6 + 0 * y, -1)", ["constant_passes"]),
        ("x.clone()", ["identity_passes", "input_unused"]),
        ("torch.relu(y - 0.5) + 0 * x.clamp(0, 1)", ["input_unused"]),
        ("x.relu() + 1e-7 * y", ["input_unused"]),
        ("torch.dropout(x * y, 0.5, True)", ["random"]),
        ("x.log() * y", ["not_finite"]),
        ("(x * y)[:0]", ["empty"]),
        ("x[x > 0] * 2", ["shapes_vary"]),
        ("x.sum().item()", ["broken"]),
        ("x.nothing()", ["broken"]),
    ],
)
def test_rules(answer: str, rules: list[str]) -> None:
    assert [f.rule for f in audited(answer).findings] == rules


def test_inputs_that_are_always_the_same() -> None:
    source = MODEL.format(answer="x * y", x="torch.ones(8, 16)").replace("torch.rand(8", "torch.ones(8")
    found = audit(Problem("made-up", 1, "one", "train", source), EvaluateConfig(), compiled=False)
    assert [f.rule for f in found.findings] == ["inputs_fixed"]


def test_both_baselines_are_timed() -> None:
    result = audited("torch.nn.functional.gelu(x) * y", compiled=True)
    assert result.findings == []
    assert result.eager_ms is not None
    assert result.eager_ms > 0
    assert result.compiled_ms is not None
    assert result.compiled_ms > 0


@pytest.mark.parametrize("problem", problems.builtin(), ids=lambda p: p.name)
def test_the_built_in_problems_ask_for_work(problem: Problem) -> None:
    assert audit(problem, EvaluateConfig(), compiled=False).findings == []


def test_command(tmp_path: Path) -> None:
    """Text and JSON name the rule, and the exit code says that there is one."""
    file = tmp_path / "lazy.py"
    file.write_text(MODEL.format(answer="(x * y) * 1e-6", x="torch.randn(8, 16)"))
    db = ["--db", f"sqlite:///{tmp_path / 'kpipe.db'}"]
    run = CliRunner().invoke
    assert run(app, ["problems", "add", str(file), *db]).exit_code == 0
    told = run(app, ["problems", "audit", "lazy", "--no-compile", "--json", *db])
    assert told.exit_code == 1
    (found,) = json.loads(told.output)
    assert [f["rule"] for f in found["findings"]] == ["zeros_pass"]
    shown = run(app, ["problems", "audit", "lazy", "gelu", "--no-compile", *db])
    assert shown.exit_code == 1
    assert "zeros_pass: " in shown.output
    assert "builtin/gelu: eager " in shown.output
    assert run(app, ["problems", "audit", "gelu", "--no-compile", *db]).exit_code == 0
