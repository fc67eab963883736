"""The offline coder: what it reads, what it writes, and that its kernels do what its documentation says."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from kpipe import problems
from kpipe.coder.base import CoderRequest
from kpipe.coder.builtin import BuiltinCoder, effective, rewrite, transformations
from kpipe.coder.builtin.catalogue import REWRITES
from kpipe.coder.builtin.module import render
from kpipe.coder.builtin.specs import SPECS
from kpipe.coder.builtin.words import RULES, strategy_in
from kpipe.domain.problem import Problem
from kpipe.domain.verdict import Outcome
from kpipe.evaluate.build import BuildCache, build_module, request_from_call
from kpipe.policy import grammar

PROBLEMS = {p.name: p for p in problems.builtin()}


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


def test_the_order_does_not_matter() -> None:
    for name in PROBLEMS:
        assert render(name, ["fuse", "simd"]) == render(name, ["simd", "fuse"])


def test_what_does_not_apply_or_is_there_changes_nothing() -> None:
    kernel = render("cumsum", ["fuse"])
    assert ask("cumsum", kernel, "Use a minimax polynomial.", Outcome.CORRECT) == kernel
    assert ask("cumsum", kernel, "Fuse everything.", Outcome.CORRECT) == kernel
    assert ask("cumsum", PROBLEMS["cumsum"].source, "Use a minimax polynomial.") == PROBLEMS["cumsum"].source


def test_a_broken_kernel_is_mended_first() -> None:
    broken = render("gelu", ["half"])
    assert transformations(ask("gelu", broken, "Vectorize it.", Outcome.WRONG_VALUE)) == ("simd",)
    assert ask("gelu", broken, "no advice", Outcome.WRONG_VALUE) == broken


def test_rewrites_start_over_and_are_given_up_for_what_comes_next() -> None:
    kernel = render("gelu", ["fuse", "poly"])
    for advice, rewrite_ in (("A crude estimate will do.", "approx"), ("Compile with -O0.", "naive")):
        changed = ask("gelu", kernel, advice, Outcome.CORRECT)
        assert transformations(changed) == (rewrite_,)
        assert transformations(ask("gelu", changed, "Fuse it.", Outcome.CORRECT)) == ("fuse",)


@pytest.mark.parametrize("name", list(SPECS))
def test_one_set_of_transformations_one_code(name: str) -> None:
    """Only those are listed that leave a trace, so that equal code has an equal first line."""
    sets = [
        frozenset(effective(name, each)) for each in combinations(sorted(SPECS[name].family.improvements), 2)
    ]
    codes: dict[str, frozenset[str]] = {}
    for each in sets:
        code = render(name, each).partition("\n")[2]
        assert codes.setdefault(code, each) == each


def test_only_built_in_problems_are_supported() -> None:
    coder = BuiltinCoder()
    assert all(coder.supports(p) is None for p in PROBLEMS.values())
    other = Problem("mine", 1, "gelu", "train", PROBLEMS["gelu"].source + "\n# changed\n")
    assert coder.supports(other)


@pytest.mark.parametrize("name", list(SPECS))
def test_every_kernel_is_valid_python(name: str) -> None:
    for strategy in (*SPECS[name].family.improvements, *REWRITES):
        tree = ast.parse(render(name, [strategy]))
        assert any(isinstance(n, ast.ClassDef) and n.name == "ModelNew" for n in tree.body)


def test_four_distinct_honest_steps_exist_for_every_problem() -> None:
    """Unchanged code earns nothing, so a trajectory of four turns needs four of them."""
    for name in PROBLEMS:
        honest = SPECS[name].family.improvements | {"double", "naive"}
        assert len(honest) >= 4, name


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
        assert result.route in ("shim", "cache")
        if result.so_path is None:
            raise RuntimeError(result.log)
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
def test_improvements_keep_the_answer(name: str, cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    # fastmath sets the float mode of the process that loads it: it is tested by the evaluator, in a process of its own
    improvements = sorted(SPECS[name].family.improvements - {"fastmath"})
    alternatives = [[s] for s in ("tile", "online", "library") if s in improvements]
    for applied in ([], [s for s in improvements if [s] not in alternatives], *alternatives):
        assert close(run(name, applied, cache, monkeypatch)), applied


@pytest.mark.parametrize(
    ("name", "rewrite_"),
    [("gelu", "half"), ("softmax", "approx"), ("rms_norm", "skip"), ("matmul_relu", "skip"), ("rnn", "skip")],
)
def test_wrong_rewrites_break_the_answer(
    name: str, rewrite_: str, cache: BuildCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not close(run(name, [rewrite_], cache, monkeypatch))


@pytest.mark.parametrize("rewrite_", ["double", "naive"])
def test_slow_rewrites_keep_it(rewrite_: str, cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    assert close(run("rms_norm", [rewrite_], cache, monkeypatch))


def test_cuda_in_cpp_does_not_compile(cache: BuildCache, monkeypatch: pytest.MonkeyPatch) -> None:
    log = run("gelu", ["cuda"], cache, monkeypatch)
    assert isinstance(log, str)
    assert "__shared__" in log
