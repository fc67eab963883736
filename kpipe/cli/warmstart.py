"""`kpipe warmstart`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kpipe.cli.options import DEFAULT_DB, ConfigFile, Db, Preset, Set

if TYPE_CHECKING:
    from kpipe.config import Config
    from kpipe.store.database import Database
    from kpipe.store.records import Example

LINES = 10
"""Lines of progress of the whole."""


class By(StrEnum):
    ADVANTAGE = "advantage"
    SPEEDUP = "speedup"


def warmstart(
    to: Annotated[Path, typer.Option(metavar="DIR", help="New directory for the policy.")],
    run: Annotated[str | None, typer.Option("--run", help="Run whose best turns are the examples.")] = None,
    by: Annotated[By, typer.Option(help="What makes a turn of that run good.")] = By.ADVANTAGE,
    per_problem: Annotated[int, typer.Option(min=1, help="Turns of each problem at most.")] = 64,
    file: Annotated[
        Path | None, typer.Option(help='JSONL with {"prompt": ..., "suggestion": ...} a line.')
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Policy to start from; by default the run's first, or policy.model.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the examples.")] = 2,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples of one optimizer step.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=2, help="Longer examples are left out.")] = 4096,
    config: ConfigFile = None,
    preset: Preset = None,
    set_: Set = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Fine-tune a policy on suggestions: the best of a run, or those of a file. The usual start before RL.

    train.learning_rate, device, dtype, packing, lora_rank and the like are those of --run, --config and --set.

    Example: kpipe warmstart --run first --by speedup --to warm
    """
    import os

    import torch

    from kpipe.errors import UsageError
    from kpipe.policy.checkpoint import locate
    from kpipe.store.database import Database
    from kpipe.train.warmstart import finetune, read_pairs

    if (run is None) == (file is None):
        raise UsageError("Say where the examples come from.", "Give either --run NAME or --file PAIRS.jsonl.")
    if file is not None:
        examples, start = read_pairs(file), None
        settings = _settings(None, config, preset, set_)
    else:
        assert run is not None
        with Database.open(db) as database:
            examples, start, settings = _of_run(database, run, by, per_problem, config, preset, set_)
    chosen = model or start or (settings.policy.model if settings.policy.kind == "local" else None)
    if chosen is None:
        raise UsageError("Say which policy learns them.", "Give --model DIRECTORY_OR_HUB_ID.")
    torch.set_num_threads(settings.train.threads or len(os.sched_getaffinity(0)))
    made = finetune(
        locate(chosen),
        to,
        examples,
        settings.train,
        epochs=epochs,
        batch_size=batch_size,
        max_tokens=max_tokens,
        seed=settings.seed,
        told=_tell,
    )
    left_out = f", {made.too_long} longer ones left out" if made.too_long else ""
    typer.echo(f"Learned {made.examples} examples{left_out}.")
    typer.echo(f"Loss by pass: {', '.join(f'{x:.3f}' for x in made.losses)} nats per token.")
    typer.echo(f"kpipe run --run NAME --set policy.kind=local --set policy.model={to}  # train it further")


def _of_run(
    db: Database,
    name: str,
    by: By,
    per_problem: int,
    config: Path | None,
    preset: str | None,
    set_: list[str] | None,
) -> tuple[list[Example], str | None, Config]:
    """Examples, the run's first policy, and its settings as changed by the options. Raises UsageError."""
    from kpipe.errors import UsageError
    from kpipe.store import policies, runs, suggestions

    found = db.read(runs.get, name)
    if found is None:
        raise UsageError(f"There is no run {name!r} in this database.", "`kpipe show run` lists them.")
    examples = db.read(suggestions.best, found.id, by.value, per_problem)
    if not examples:
        wanted = "a positive advantage in an update" if by is By.ADVANTAGE else "a correct, timed kernel"
        raise UsageError(
            f"No turn of run {name!r} has {wanted}.", "Wait for it, or choose the other one with --by."
        )
    base = db.read(policies.get, found.id, 0)
    return examples, base.path if base else None, _settings(found.config, config, preset, set_)


def _settings(
    stored: dict[str, object] | None, config: Path | None, preset: str | None, set_: list[str] | None
) -> Config:
    """Those of the run, if any, with what --config and --set name."""
    from kpipe.config import from_json, keys, load, value_of

    loaded = load(preset=preset, file=config, overrides=set_ or ())
    if stored is None:
        return loaded.config
    tree = from_json(stored).model_dump(mode="json")
    for key in (k for k in keys() if loaded.asked_for(k) and k.startswith("train.")):
        tree["train"][key.removeprefix("train.")] = value_of(loaded.config, key)
    tree["train"]["batch_size"] = stored["train"]["batch_size"]  # type: ignore[index]
    return from_json(tree)


def _tell(step: int, last: int, loss: float) -> None:
    if step == 1 or step % max(1, last // LINES) == 0 or step == last:
        typer.echo(f"step {step}/{last}  loss {loss:.3f}", err=True)
