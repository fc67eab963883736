"""One update, from its groups to what is recorded of it: the same for the trainer and for a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kpipe.config import Config
from kpipe.errors import TrainError
from kpipe.store import rollouts
from kpipe.store.records import Sample, StoredTurn, TrainedSample
from kpipe.train.batch import Scored, batch_hash, score
from kpipe.train.checks import check_vocabulary
from kpipe.train.learner import Learner
from kpipe.train.memory import fitting
from kpipe.train.metrics import batch_metrics
from kpipe.train.tally import Stopwatch
from kpipe.train.update import Learned, Row, TooLarge, Update


@dataclass(frozen=True, slots=True)
class Made:
    """What became of the samples, in order. `metrics` follow from samples, start, seed and build alone."""

    samples: list[TrainedSample]
    batch_hash: str
    metrics: dict[str, Any]
    learned: Learned


def make_update(
    learner: Learner,
    groups: Sequence[Sequence[Sample]],
    turns: Sequence[StoredTurn],
    config: Config,
    *,
    seed: int,
    step: int,
    watch: Stopwatch,
    should_stop: Callable[[], bool] = lambda: False,
) -> Made:
    """Move the learner by update `step`; `turns` are those of the groups. Raises Stopped, TrainError."""
    check_vocabulary(groups, learner.model)
    scored = score(groups, config.train)
    rows = [row_of(s) for s in scored if s.drop_reason is None]
    update = Update(learner, rows, config, seed=seed, step=step, watch=watch, should_stop=should_stop)
    try:
        with fitting(
            learner.path, config.train, learner.device
        ):  # the optimizer's state comes with its first step
            learned = update.run()
    except TooLarge as too:
        raise _too_large(too, step, learner, config) from None
    metrics = {**batch_metrics(scored, turns, step - 1), **learned.metrics}
    hashed = batch_hash(s.sample for s in scored)
    return Made(trained_samples(scored, learned.weights), hashed, metrics, learned)


def _too_large(too: TooLarge, step: int, learner: Learner, config: Config) -> TrainError:
    """What would fit, as far as this update has shown."""
    fits = f"; one of {too.fitted:,} did" if too.fitted else ""
    budget = too.fitted or too.tokens // 2
    more = "" if config.train.gradient_checkpointing else " --set train.gradient_checkpointing=true"
    return TrainError(
        f"Update {step} does not fit into the memory of {learner.device}:"
        f" {too.tokens:,} tokens in one pass did not{fits}. Nothing was consumed.",
        f"Go on with `kpipe run --set train.max_tokens_per_micro_batch={budget}{more}`"
        " and the run's other options: the result is the same up to rounding.",
    )


def turns_of(conn: Any, groups: Sequence[Sequence[Sample]]) -> list[StoredTurn]:
    """The turns of every trajectory in `groups`."""
    trajectories = dict.fromkeys(s.trajectory_id for group in groups for s in group)
    return [turn for t in trajectories for turn in rollouts.turns(conn, t)]


def row_of(scored: Scored) -> Row:
    """What the update needs of a sample that was not dropped. Raises ValueError for one that was."""
    if scored.advantage is None:
        raise ValueError(f"turn {scored.sample.turn_id} was dropped: {scored.drop_reason}")
    tokens = scored.sample.tokens
    return Row(tokens.prompt, tokens.completion, tokens.logprobs, scored.advantage)


def trained_samples(scored: Sequence[Scored], weights: Sequence[float]) -> list[TrainedSample]:
    """What the store keeps of every sample; `weights` are of those that were not dropped, in order."""
    rest = iter(weights)
    return [
        TrainedSample(
            s.sample.turn_id, s.return_, s.advantage, None if s.drop_reason else next(rest), s.drop_reason
        )
        for s in scored
    ]
