"""Prompts are template files: `kpipe/prompts/NAME.txt`, filled by plain substitution and known by their hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template

from kpipe.assets import asset
from kpipe.domain.verdict import Outcome

_APPLIED = re.compile(r"^# applied: (.*)$", re.M)


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """`sha` is stored with every turn, so that a changed template is never mistaken for the old one."""

    name: str
    text: str

    @property
    def sha(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def render(self, values: Mapping[str, str]) -> str:
        return Template(self.text).substitute(values)


@dataclass(frozen=True, slots=True)
class State:
    """What the policy is shown: A is the previous kernel, B the current one, A -> B the last suggestion.

    At the start of an episode A = B = the reference and there is no suggestion.
    """

    problem_name: str
    reference: str
    kernel_a: str
    kernel_b: str
    suggestion: str = ""
    outcome: Outcome | None = None
    speedup: float | None = None
    evidence: str = ""


def load_template(name: str) -> PromptTemplate:
    """Raises FileNotFoundError for a name that does not ship with kpipe."""
    return PromptTemplate(name, asset(f"prompts/{name}.txt").read_text(encoding="utf-8"))


def render_prompt(template: PromptTemplate, state: State) -> str:
    """The user message for one turn."""
    return template.render(
        {
            "problem": state.problem_name,
            "reference": state.reference,
            "kernel_a": state.kernel_a,
            "kernel_b": state.kernel_b,
            "suggestion": state.suggestion or "none",
            "result": describe(state.outcome, state.speedup),
            "applied": applied(state.kernel_b),
            "evidence": state.evidence or "none",
        }
    )


def applied(kernel: str) -> str:
    """The transformations that a kernel's header comment ``# applied: ...`` lists, or 'none'."""
    found = _APPLIED.search(kernel)
    return found[1].strip() if found and found[1].strip() else "none"


def describe(outcome: Outcome | None, speedup: float | None) -> str:
    """The last verdict in coarse words, so that timing noise does not enter the prompt."""
    if outcome is None:
        return "baseline"
    if outcome is Outcome.UNCHANGED:
        return "nothing changed"
    if outcome in (Outcome.COMPILE_ERROR, Outcome.LOAD_ERROR):
        return "does not compile"
    if outcome is not Outcome.CORRECT or speedup is None:
        return "wrong answer"
    for limit, words in ((0.3, "below 0.3x"), (1, "below 1x"), (2, "below 2x"), (4, "below 4x")):
        if speedup < limit:
            return f"correct {words}"
    return "correct 4x and more"
