"""The offline coder: what it reads, what it writes, and that its kernels do what its documentation says."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from kpipe import problems
from kpipe.coder.base import CoderRequest
from kpipe.coder.builtin import BuiltinCoder, rewrite, transformations
from kpipe.coder.builtin.module import render
from kpipe.coder.builtin.specs import SPECS
from kpipe.coder.builtin.words import RULES, strategy_in
from kpipe.domain.identity import same_code
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome
from kpipe.evaluate.build import BuildCache, build_module, request_from_call
from kpipe.policy import grammar

PROBLEMS = {p.name: p for p in problems.builtin()}
HARMFUL = {"half", "approx", "skip"}


def ask(problem: str, kernel: str, suggestion: str, outcome: Outcome | None = None) -> str:
    return rewrite(CoderRequest(PROBLEMS[problem], kernel, suggestion, outcome))


def test_every_sentence_of_the_grammar_is_read_as_it_was_meant() -> None:
    sentences = list(grammar.all_sentences(tuple(PROBLEMS)))
    assert len(sentences) > 1000
    assert [(s, t) for s, t in sentences if strategy_in(t) != s] == []
    assert set(grammar.STRATEGIES) == set(RULES)


@pytest.mark.parametrize("text", ["", "make it faster", "Use better code.", "…"])
def test_a_text_without_advice_changes_nothing(text: str) -> None:
    assert strategy_in(text) is None
    kernel = render("gelu", ["fuse"])
    assert ask("gelu", kernel, text, Outcome.CORRECT) == kernel
    assert ask("gelu", PROBLEMS["gelu"].source, text) == PROBLEMS["gelu"].source


def test_transformations_accumulate_and_are_written_down() -> None:
    first = ask("gelu", PROBLEMS["gelu"].source, "Fuse the steps.")
    second = ask("gelu", first, "Use a polynomial.", Outcome.CORRECT)
    assert transformations(first) == ("fuse",)
    assert transformations(second) == ("fuse", "poly")


def test_the_order_does_not_matter_to_the_code() -> None:
    for name in PROBLEMS:
        a, b = render(name, ["fuse", "simd"]), render(name, ["simd", "fuse"])
        assert a != b
        assert same_code(a, b)


def test_what_does_not_apply_or_is_there_changes_nothing() -> None:
    kernel = render("cumsum", ["fuse"])
    assert ask("cumsum", kernel, "Use a minimax polynomial.", Outcome.CORRECT) == kernel
    assert ask("cumsum", kernel, "Fuse everything.", Outcome.CORRECT) == kernel


def test_a_broken_kernel_is_mended_first() -> None:
    kernel = render("gelu", ["fuse", "half"])
    assert transformations(ask("gelu", kernel, "Vectorize it.", Outcome.WRONG_VALUE)) == ("fuse", "simd")
    assert transformations(ask("gelu", kernel, "no advice", Outcome.WRONG_VALUE)) == ("fuse",)


def test_rivals_replace_each_other() -> None:
    kernel = render("gelu", ["fuse", "poly"])
    assert transformations(ask("gelu", kernel, "A crude estimate will do.", Outcome.CORRECT)) == (
        "fuse",
        "approx",
    )
    assert transformations(ask("gelu", kernel, "Compile with -O0.", Outcome.CORRECT)) == ("naive",)
    assert transformations(ask("gelu", render("gelu", ["naive"]), "Fuse it.", Outcome.CORRECT)) == ("fuse",)


def test_only_built_in_problems_are_supported() -> None:
    coder = BuiltinCoder()
    assert all(coder.supports(p) is None for p in PROBLEMS.values())
    other = Problem("mine", 1, "gelu", "train", PROBLEMS["gelu"].source + "\n# changed\n")
    assert coder.supports(other)


@pytest.mark.parametrize("name", list(SPECS))
def test_every_kernel_is_valid_python(name: str) -> None:
    for strategy in SPECS[name].family.applies():
        tree = ast.parse(render(name, [strategy]))
        assert any(isinstance(n, ast.ClassDef) and n.name == "ModelNew" for n in tree.body)


def test_four_distinct_honest_steps_exist_for_every_training_problem() -> None:
    """Unchanged code earns nothing, so a trajectory of four turns needs four of them."""
    for p in PROBLEMS.values():
        honest = SPECS[p.name].family.applies() - HARMFUL - {"cuda", "naive"}
        assert len(honest) >= 4, p.name


@pytest.fixture(scope="module")
def cache(build_cache: Path) -> BuildCache:
    return BuildCache(build_cache, 2048)


def run(
    name: str, applied: Sequence[str], cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Any] | str:
    """Output of the kernel and of the reference, or the compiler's log."""
    log = ""

    def load_inline(*args: Any, **kwargs: Any) -> Any:
        nonlocal log
        result = build_module(request_from_call(args, kwargs), cache=cache, timeout_s=120)
        log = result.log
        if result.so_path is None:
            raise RuntimeError(result.log)
        assert result.route in ("shim", "cache")
        spec = importlib.util.spec_from_file_location(kwargs["name"], result.so_path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    reference: dict[str, Any] = {}
    exec(PROBLEMS[name].source, reference)
    kernel: dict[str, Any] = {}
    try:
        exec(render(name, applied), kernel)
    except RuntimeError:
        return log
    arguments = reference["get_init_inputs"]()
    torch.manual_seed(0)
    theirs = reference["Model"](*arguments)
    torch.manual_seed(0)
    ours = kernel["ModelNew"](*arguments)
    inputs = reference["get_inputs"]()
    with torch.no_grad():
        return ours(*inputs), theirs(*inputs)


def close(pair: tuple[Any, Any] | str) -> bool:
    assert not isinstance(pair, str), pair
    return torch.allclose(*pair, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", list(SPECS))
def test_honest_transformations_keep_the_answer(
    name: str, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    applies = SPECS[name].family.applies()
    everything = sorted(
        applies - HARMFUL - {"cuda", "naive", "double", "fastmath", "tile", "online", "library"}
    )
    for applied in ([], everything, *[[s] for s in ("tile", "online", "library") if s in applies]):
        assert close(run(name, applied, cache, monkeypatch)), applied


@pytest.mark.parametrize(
    ("name", "strategy"),
    [("gelu", "half"), ("softmax", "approx"), ("layer_norm", "skip"), ("matmul_relu", "skip")],
)
def test_harmful_transformations_break_the_answer(
    name: str, strategy: str, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not close(run(name, [strategy], cache, monkeypatch))
