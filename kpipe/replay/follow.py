"""`kpipe replay trajectory`: a trajectory turn by turn, as text with colours or as JSON."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from kpipe.domain.verdict import Verdict
from kpipe.store.records import Story, TurnStory, Use

COLOURS = {"+": "green", "-": "red", "@": "cyan"}


def parents(story: Story) -> list[str]:
    """For each turn the kernel (B) that its coder was given: the last one before it, or the reference."""
    out, current = [], story.reference
    for turn in story.turns:
        out.append(current)
        if turn.kernel is not None and turn.fault is None:
            current = turn.kernel
    return out


def diff(before: str, after: str, name: str = "kernel") -> list[str]:
    """Unified, without line ends."""
    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), "before", name, lineterm=""))


def coloured(lines: Sequence[str]) -> Text:
    """A unified diff as people are used to see it."""
    text = Text()
    for line in lines:
        style = "bold" if line.startswith(("+++", "---")) else COLOURS.get(line[:1], "")
        text.append(f"{line}\n", style)
    return text


def heading(story: Story) -> str:
    return (
        f"Trajectory {story.id}: problem {story.problem}, run {story.run}, group {story.group},"
        f" member {story.member}, {story.state}, {len(story.turns)} turns"
    )


def page(turn: TurnStory, parent: str, *, prompt: bool = True) -> RenderableType:
    """All that is known about one turn, with or without the prompt."""
    parts: list[RenderableType] = [Rule(f"turn {turn.ordinal} (id {turn.id}), by policy {turn.policy_step}")]
    if prompt:
        parts += _section("prompt", Text(turn.prompt, "dim"))
    parts += _section("suggestion", Text(turn.suggestion or "(nothing)", "bold"))
    if turn.coder:
        parts.append(Text(f"coder {turn.coder}, ${turn.usd:.4f}"))
    if turn.coder_error:
        parts.append(Text(turn.coder_error, "red"))
    if turn.kernel is not None:
        lines = diff(parent, turn.kernel, f"turn {turn.ordinal}")
        parts += _section("change", coloured(lines) if lines else Text("(the kernel is the same)"))
    if turn.verdict and turn.verdict.log:
        parts += _section("log", Text(turn.verdict.log))
    parts += _section("result", Text("\n".join(result_lines(turn))))
    return Group(*parts)


def result_lines(turn: TurnStory) -> list[str]:
    """Verdict, findings, reward, and what updates made of it."""
    lines = [verdict_words(turn.outcome, turn.verdict) if turn.outcome else f"{turn.state}, no verdict"]
    if turn.verdict:
        lines += [f"  {f.severity} {f.rule}: {f.message}" for f in turn.verdict.findings]
    if turn.fault:
        lines.append(f"fault: {turn.fault}, no reward")
    elif turn.reward is not None:
        lines.append(f"reward {turn.reward:.4g}")
    return lines + [use_words(use) for use in turn.uses]


def verdict_words(outcome: str, verdict: Verdict | None) -> str:
    if verdict is None or verdict.speedup is None:
        return outcome
    bounds = ""
    if verdict.speedup_low is not None and verdict.speedup_high is not None:
        bounds = f" ({verdict.speedup_low:.3g} to {verdict.speedup_high:.3g})"
    return f"{outcome}, speedup {verdict.speedup:.3g}{bounds}, {verdict.time_ms:.4g} ms"


def use_words(use: Use) -> str:
    head = f"update {use.step} of run {use.run}: "
    if use.drop_reason:
        return f"{head}left out ({use.drop_reason})"
    numbers = {"return": use.return_, "advantage": use.advantage, "weight": use.weight}
    return head + ", ".join(f"{k} {'none' if x is None else format(x, '.4g')}" for k, x in numbers.items())


def pages(story: Story, turn: int | None) -> Iterator[RenderableType]:
    """Every turn, or only this one."""
    for told, parent in zip(story.turns, parents(story), strict=True):
        if turn is None or told.ordinal == turn:
            yield page(told, parent)


def step_through(console: Console, story: Story, turn: int | None, *, ask: bool) -> None:
    """Print page after page; `ask` waits for Enter in between, and `q` ends it."""
    console.print(heading(story), style="bold")
    for number, shown in enumerate(pages(story, turn)):
        if ask and number and console.input("[dim]Enter: next turn, q: stop [/dim]").strip() == "q":
            return
        console.print(shown, soft_wrap=True)


def print_beside(console: Console, stored: Story, again: Story, start: int) -> None:
    """The turns from `start` of both, side by side, and a line per turn at the end."""
    console.print(heading(stored), style="bold")
    summary = Table("turn", "suggestion", "kernel", "was", "is", "reward was", "is", box=None)
    sides = [(story.turns[start:], parents(story)[start:]) for story in (stored, again)]
    for left, right in zip_longest(*(zip(*side, strict=True) for side in sides)):
        shown = [
            page(*side, prompt=False) if side else Text("(there was no such turn)") for side in (left, right)
        ]
        grid = Table("stored", "played again", box=None, expand=True, header_style="bold")
        grid.add_row(*shown)
        console.print(grid)
        old, new = (side[0] if side else None for side in (left, right))
        summary.add_row(str((old or new).ordinal), *_compared(old, new))  # type: ignore[union-attr]
    console.print(summary)


def _compared(old: TurnStory | None, new: TurnStory | None) -> list[str]:
    def same(a: str | None, b: str | None) -> str:
        return "same" if a == b else "other"

    pairs = [
        (t.outcome or t.fault or "", "none" if t.reward is None else f"{t.reward:.3g}") if t else ("", "")
        for t in (old, new)
    ]
    words = [same(old.suggestion, new.suggestion), same(old.kernel, new.kernel)] if old and new else ["", ""]
    return [*words, pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]]


def as_json(story: Story, turn: int | None) -> dict[str, Any]:
    """The story with a diff in every turn."""
    tree = asdict(story)
    tree["turns"] = [
        {**asdict(told), "diff": diff(parent, told.kernel) if told.kernel is not None else None}
        for told, parent in zip(story.turns, parents(story), strict=True)
        if turn is None or told.ordinal == turn
    ]
    return tree


def _section(title: str, body: Text) -> list[RenderableType]:
    return [Text(f"\n{title}", "bold cyan"), body]
