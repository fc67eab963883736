"""Prompts are template files: `kpipe/prompts/NAME.txt`, filled by plain substitution and known by their hash."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template

from kpipe.assets import asset
from kpipe.domain.near import near
from kpipe.domain.verdict import Outcome
from kpipe.errors import ConfigError

_APPLIED = re.compile(r"^# applied: (.*)$", re.M)
LEFT_OUT = "(left out: the prompt would be too long)"
MOST_EVIDENCE = 4000
"""Characters of a failure's log that a prompt shows at most."""


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

    At the start of an episode A = B = the reference and there is no suggestion. `best_kernel` is the fastest
    correct one of the trajectory so far, `history` has a line for each suggestion before the last one.
    """

    problem_name: str
    reference: str
    kernel_a: str
    kernel_b: str
    suggestion: str = ""
    outcome: Outcome | None = None
    speedup: float | None = None
    evidence: str = ""
    device: str = "cpu"
    best_kernel: str = ""
    best_speedup: float | None = None
    history: tuple[str, ...] = ()


def load_template(name: str) -> PromptTemplate:
    """A template that ships with kpipe, or the `.txt` file of that path. Raises ConfigError."""
    try:
        path = Path(name).expanduser() if name.endswith(".txt") else asset(f"prompts/{name}.txt")
        template = PromptTemplate(name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        ours = sorted(p.stem for p in asset("prompts").glob("*.txt"))
        raise ConfigError(
            f"There is no prompt template {name!r}.{near(name, ours)}",
            f"policy.prompt is one of {', '.join(ours)}, or the path of a .txt file.",
        ) from None
    try:
        render_prompt(template, State("", "", "", ""))
    except (KeyError, ValueError) as error:
        known = ", ".join(f"${value}" for value in _values(State("", "", "", "")))
        raise ConfigError(
            f"The prompt template {name} has a placeholder that nobody fills: {error}.",
            f"There are {known}; a dollar sign is written $$.",
        ) from None
    return template


def render_prompt(template: PromptTemplate, state: State) -> str:
    """The user message for one turn."""
    return template.render(_values(state))


def _values(state: State) -> dict[str, str]:
    return {
        "problem": state.problem_name,
        "reference": state.reference,
        "kernel_a": state.kernel_a,
        "kernel_b": state.kernel_b,
        "suggestion": state.suggestion or "none",
        "result": describe(state.outcome, state.speedup),
        "applied": applied(state.kernel_b),
        "evidence": state.evidence or "none",
        "failure": _failure(state),
        "device": state.device,
        "best": _best(state),
        "history": "\n".join(f"{n}. {line}" for n, line in enumerate(state.history, 1)) or "nothing",
    }


def _failure(state: State) -> str:
    """The log of a kernel that failed; that of a correct one has timings, which differ from run to run."""
    if state.outcome in (None, Outcome.CORRECT, Outcome.UNCHANGED) or not state.evidence:
        return "none"
    return abridged(state.evidence, MOST_EVIDENCE)


def _best(state: State) -> str:
    if not state.best_kernel:
        return "none is correct yet"
    words = describe(Outcome.CORRECT, state.best_speedup)
    if state.best_kernel == state.kernel_b:
        return f"kernel B itself: {words}"
    return f"{words}\n```python\n{state.best_kernel}\n```"


def shorter_prompts(template: PromptTemplate, state: State) -> list[str]:
    """Ever shorter renderings of the same turn, the least useful part gone first and kernel B always whole."""
    found: list[str] = []
    last = render_prompt(template, state)
    for trimmed in _trimmed(state):
        text = render_prompt(template, trimmed)
        if len(text) < len(last):
            found.append(text)
            last = text
    return found


def _trimmed(state: State) -> Iterator[State]:
    """From what is missed least: what is said twice, old tries, the middle of a log, the best kernel, the
    reference, the previous kernel.
    """
    steps: tuple[Callable[[State], State], ...] = (
        lambda s: replace(
            s, kernel_a=_unless_repeated(s, s.kernel_a), reference=_unless_repeated(s, s.reference)
        ),
        lambda s: replace(s, history=s.history[-2:]),
        lambda s: replace(s, evidence=abridged(s.evidence, 1200)),
        lambda s: s if s.best_kernel == s.kernel_b else replace(s, best_kernel=s.best_kernel and LEFT_OUT),
        lambda s: replace(s, reference=LEFT_OUT),
        lambda s: replace(s, kernel_a=LEFT_OUT, history=()),
        lambda s: replace(s, evidence=abridged(s.evidence, 300)),
        lambda s: replace(s, evidence="", suggestion=abridged(s.suggestion, 200)),
    )
    for step in steps:
        state = step(state)
        yield state


def _unless_repeated(state: State, code: str) -> str:
    return "(the same as kernel B)" if code == state.kernel_b else code


def abridged(text: str, most: int) -> str:
    """Beginning and end of a long text, about `most` characters together."""
    if len(text) <= most:
        return text
    head, tail = text[: most * 2 // 3].rstrip(), text[-(most // 3) :].lstrip()
    return f"{head}\n[... {len(text) - len(head) - len(tail)} characters left out ...]\n{tail}"


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
