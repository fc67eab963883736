"""The model card of a policy: what it was trained from, on what, how it went and what it reached.

Only text, made from what the store knows of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kpipe import __version__
from kpipe.config import Config, keys, value_of
from kpipe.store.records import BestKernel, TrainStep

POINTS = 12
"""Updates that the table of the curves shows."""

CURVES = {
    "reward_mean": "reward",
    "correct_fraction": "correct",
    "fast_1_fraction": "faster than the reference",
    "speedup_geomean": "speedup of correct kernels",
    "kl": "KL to the start",
    "entropy": "entropy",
}
_SECTIONS = ("problems", "policy", "collect", "reward", "train")
_MODELS = {"policy.model", "train.reference"}
_PLACES = {"policy.device", "policy.threads", "train.device", "train.threads", "train.peak_tflops"}


@dataclass(frozen=True, slots=True)
class Facts:
    """`step` is the published version, `steps` are the updates up to it; `best` kernels are the whole run's."""

    run: str
    step: int
    base: str
    config: Config
    steps: Sequence[TrainStep]
    turns: int
    problems: Sequence[str]
    best: Sequence[BestKernel]
    adapter: bool


def model_card(facts: Facts) -> str:
    """Markdown with the header that the Hugging Face hub reads."""
    return (
        "\n".join([*_header(facts), *_data(facts), *_curves(facts), *_evaluation(facts), *_settings(facts)])
        + "\n"
    )


def _header(f: Facts) -> Iterator[str]:
    yield "---"
    yield f"library_name: {'peft' if f.adapter else 'transformers'}"
    if _is_hub_id(f.base):
        yield f"base_model: {f.base}"
    yield "pipeline_tag: text-generation"
    yield "tags: [kpipe, grpo, reinforcement-learning, gpu-kernels]"
    yield "---"
    yield f"# {f.run}, update {f.step}"
    yield ""
    yield (
        f"This model suggests how to make a kernel faster; another one writes the code. It is {_shown(f.base)} after"
        f" {f.step} GRPO updates by kpipe {__version__}" + (", as a LoRA adapter." if f.adapter else ".")
    )
    yield ""


def _data(f: Facts) -> Iterator[str]:
    trained = sum(s.metrics.get("samples_trained", 0) for s in f.steps)
    looked_at = sum(s.metrics.get("samples", 0) for s in f.steps)
    yield "## Data"
    yield ""
    yield (
        f"Suite {f.config.problems.suite}, split {f.config.problems.split}: {len(f.problems)} problems,"
        f" {f.turns} settled turns in the run, whose kernels {_coder(f.config)} wrote. The updates looked at {looked_at} of them and learned from {trained}."
    )
    if f.problems:
        yield ""
        yield f"Problems: {', '.join(f.problems)}."
    yield ""


def _curves(f: Facts) -> Iterator[str]:
    if not f.steps:
        return
    yield "## Curves"
    yield ""
    yield f"| update | {' | '.join(CURVES.values())} |"
    yield f"|{' --- |' * (len(CURVES) + 1)}"
    for s in _spread(f.steps):
        yield f"| {s.step} | {' | '.join(_number(s.metrics.get(name)) for name in CURVES)} |"
    yield ""


def _evaluation(f: Facts) -> Iterator[str]:
    if not f.best:
        return
    yield "## Evaluation"
    yield ""
    yield "The fastest correct kernel of each problem that the run found, with 95 % intervals:"
    yield ""
    yield "| problem | speedup | interval |"
    yield "| --- | --- | --- |"
    for k in f.best:
        yield f"| {k.problem} | {k.speedup:.2f} | {k.speedup_low:.2f} to {k.speedup_high:.2f} |"
    yield ""


def _settings(f: Facts) -> Iterator[str]:
    yield "## Configuration"
    yield ""
    yield "```toml"
    yield f"seed = {f.config.seed}"
    for section in _SECTIONS:
        yield ""
        yield f"[{section}]"
        for key in keys():
            value = value_of(f.config, key) if key.startswith(f"{section}.") else None
            if value is not None and key not in _PLACES:
                shown = _shown(value) if key in _MODELS else value
                yield f"{key.removeprefix(f'{section}.')} = {_toml(shown)}"
    yield "```"


def _spread(steps: Sequence[TrainStep]) -> list[TrainStep]:
    """At most POINTS of them, the first and the last among these."""
    n = len(steps)
    return list(steps) if n <= POINTS else [steps[i * (n - 1) // (POINTS - 1)] for i in range(POINTS)]


def _number(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else ""


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case tuple() | list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case Mapping():
            return "{" + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + "}"
    return str(value)


def _shown(base: str) -> str:
    """A directory of this machine is nobody else's business."""
    return base if _is_hub_id(base) or not base.startswith(("/", ".", "~")) else Path(base).name


def _coder(config: Config) -> str:
    return "offline rules" if config.coder.kind == "builtin" else config.coder.model


def _is_hub_id(base: str) -> bool:
    return base.count("/") == 1 and not base.startswith((".", "/", "~"))
