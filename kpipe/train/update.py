"""One update: `ppo_epochs` passes over the samples of a batch.

The samples are shuffled by (run seed, update, pass) and cut into optimizer steps of at most
`mini_batch_size` x `gradient_accumulation_steps` turns. The turns of an optimizer step are sorted by
length before they are cut into micro-batches, so that next to nothing is padded; the denominator of the
loss is known before that, so the cut does not change the gradient. `_T` and `_BT` as in `kpipe.train.loss`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kpipe.config import Config
from kpipe.train.learner import Learner
from kpipe.train.loss import correction_weights, grpo_loss, loss_denominator
from kpipe.train.memory import is_out_of_memory
from kpipe.train.tally import Stopwatch, Tally

PADDING_LIMIT = 0.1
"""Share of padding in a micro-batch beyond which the next turn starts another one."""


class Stopped(Exception):
    """Somebody asked to stop; the update is abandoned and nothing of it is kept."""


class TooLarge(Exception):
    """A micro-batch of `tokens` did not fit into the memory; the largest that did has `fitted`, 0 for none."""

    def __init__(self, tokens: int, fitted: int) -> None:
        super().__init__(tokens, fitted)
        self.tokens, self.fitted = tokens, fitted


@dataclass(frozen=True, slots=True)
class Row:
    """One turn to learn from. `behaviour` are the log-probs under the policy that sampled `completion`."""

    prompt: Sequence[int]
    completion: Sequence[int]
    behaviour: Sequence[float]
    advantage: float


class Constants(NamedTuple):
    """What does not change during the update, of one row; each [T] on the device. `ref` only with a KL."""

    behaviour_T: Tensor
    prox_T: Tensor
    weight_T: Tensor
    ref_T: Tensor | None


@dataclass(frozen=True, slots=True)
class Learned:
    """`metrics` of the update; mean correction weight of each row; tokens through forward and backward (all
    passes), and through a forward pass alone (proximal policy, reference).
    """

    metrics: dict[str, float]
    weights: list[float]
    tokens: int
    tokens_frozen: int = 0


class Update:
    """The passes over one batch. Call `run` once."""

    def __init__(
        self,
        learner: Learner,
        rows: Sequence[Row],
        cfg: Config,
        *,
        seed: int,
        step: int,
        watch: Stopwatch,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.learner = learner
        self.rows = rows
        self.cfg = cfg.train
        self.temperature = cfg.policy.temperature
        self.max_tokens = cfg.policy.max_new_tokens
        self.seed = seed
        self.step = step
        self.watch = watch
        self.should_stop = should_stop
        self.tally = Tally(learner.device)
        self.constants: list[Constants] = []
        self.fitted = 0

    def run(self) -> Learned:
        """Raises Stopped, TooLarge; then the learner's parameters are neither the old nor the new ones."""
        rate = self.learner.set_learning_rate(self.cfg, self.step)
        self.constants = self._constants()
        self.fitted = 0  # a forward pass alone says little about one with a backward pass
        for epoch in range(self.cfg.ppo_epochs):
            order = list(range(len(self.rows)))
            random.Random(f"{self.seed}/{self.step}/{epoch}").shuffle(order)
            for i, chosen in enumerate(even_parts(order, self._turns_per_optimizer_step)):
                self._optimizer_step(chosen, first_pass=epoch == 0, untouched=epoch == i == 0)
        weights = [c.weight_T.mean().item() for c in self.constants]
        metrics = {"learning_rate": rate, **self.tally.metrics()}
        return Learned(metrics, weights, self.tally.tokens_trained, self.tally.tokens_frozen)

    @property
    def _turns_per_optimizer_step(self) -> int:
        return self.cfg.mini_batch_size * self.cfg.gradient_accumulation_steps

    def _constants(self) -> list[Constants]:
        device, cfg = self.learner.device, self.cfg
        behaviours = [torch.tensor(r.behaviour, dtype=torch.float32, device=device) for r in self.rows]
        proximal: Sequence[Tensor] = behaviours
        if cfg.proximal == "recompute":
            with self.watch("prox"):
                proximal = self._frozen_logprobs(self.learner.model)
            if self.rows:
                self.tally.mismatch(torch.cat(list(proximal)), torch.cat(behaviours), cfg.correction_cap)
        references: Sequence[Tensor | None] = [None] * len(self.rows)
        if self.learner.reference is not None:
            with self.watch("ref"), self.learner.frozen_reference() as reference:
                references = self._frozen_logprobs(reference)
        return [
            Constants(behaviour, prox, self._weights(prox, behaviour), ref)
            for behaviour, prox, ref in zip(behaviours, proximal, references, strict=True)
        ]

    def _weights(self, prox_T: Tensor, behaviour_T: Tensor) -> Tensor:
        everything = torch.ones_like(prox_T, dtype=torch.bool)
        cfg = self.cfg
        how = (cfg.off_policy_correction, cfg.correction_cap, cfg.correction_floor)
        return correction_weights(prox_T, behaviour_T, everything, *how)

    @torch.no_grad()
    def _frozen_logprobs(self, model: torch.nn.Module) -> list[Tensor]:
        """Log-probs of every row's completion, each [T]."""
        out: list[Tensor] = [torch.empty(0)] * len(self.rows)
        for part in self._micro_batches(range(len(self.rows))):
            self._stop_if_asked()
            with self._in_memory(part):
                logp_BT, mask_BT, _ = self._logprobs(model, part, entropy=False)
            self.tally.tokens_frozen += self._tokens(part)
            for i, logp_T, mask_T in zip(part, logp_BT, mask_BT, strict=True):
                out[i] = logp_T[mask_T]
        return out

    def _optimizer_step(self, chosen: Sequence[int], *, first_pass: bool, untouched: bool) -> None:
        lengths = [len(self.rows[i].completion) for i in chosen]
        denominator = loss_denominator(lengths, self.cfg.loss_aggregation, self.max_tokens)
        # Without a KL term, a row without advantage has no gradient; it still counts in the denominator.
        useful = [i for i in chosen if self.rows[i].advantage != 0 or self.learner.reference is not None]
        if not useful:
            return
        with self.watch("fwd_bwd"):
            for part in self._micro_batches(useful):
                self._stop_if_asked()
                with self._in_memory(part):
                    self._forward_backward(part, denominator, entropy=first_pass, untouched=untouched)
        with self.watch("optim"):
            self.tally.optimizer_step(self.learner.step(self.cfg.max_grad_norm))

    def _forward_backward(
        self, part: Sequence[int], denominator: float, *, entropy: bool, untouched: bool
    ) -> None:
        logp_BT, mask_BT, entropy_BT = self._logprobs(self.learner.model, part, entropy=entropy)
        constants = [self.constants[i] for i in part]
        prox_BT = spread([c.prox_T for c in constants], mask_BT)
        refs = [c.ref_T for c in constants if c.ref_T is not None]
        ref_BT = spread(refs, mask_BT) if refs else None
        advantage_B = torch.tensor([self.rows[i].advantage for i in part], device=self.learner.device)
        loss = grpo_loss(
            logp_BT,
            prox_BT,
            spread([c.weight_T for c in constants], mask_BT),
            advantage_B,
            mask_BT,
            self.cfg,
            denominator=denominator,
            ref_BT=ref_BT,
        )
        loss.total.backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            self.tally.loss(loss)
            self.tally.tokens(logp_BT, prox_BT, ref_BT, advantage_B, mask_BT, self.cfg)
            self.tally.tokens_trained += self._tokens(part)
            if entropy_BT is not None:
                self.tally.entropy(entropy_BT, mask_BT)
            if untouched and self.cfg.proximal == "behaviour":
                behaviour = torch.cat([c.behaviour_T for c in constants])
                self.tally.mismatch(logp_BT[mask_BT], behaviour, self.cfg.correction_cap)

    def _logprobs(
        self, model: torch.nn.Module, part: Sequence[int], *, entropy: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        rows = [self.rows[i] for i in part]
        return self.learner.logprobs(
            model, [r.prompt for r in rows], [r.completion for r in rows], self.temperature, entropy=entropy
        )

    def _tokens(self, part: Sequence[int]) -> int:
        return sum(len(self.rows[i].prompt) + len(self.rows[i].completion) for i in part)

    def _micro_batches(self, chosen: Sequence[int]) -> list[list[int]]:
        sizes = {i: len(self.rows[i].prompt) + len(self.rows[i].completion) for i in chosen}
        budget = self.cfg.max_tokens_per_micro_batch
        limit = len(sizes) if budget else self.cfg.mini_batch_size
        return micro_batches(sizes, limit, budget=budget, packed=self.cfg.packing)

    @contextmanager
    def _in_memory(self, part: Sequence[int]) -> Iterator[None]:
        """Remember what fits. Raises TooLarge where `part` does not."""
        rows = [len(self.rows[i].prompt) + len(self.rows[i].completion) for i in part]
        tokens = sum(rows) if self.cfg.packing else len(rows) * max(rows)
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TooLarge(tokens, self.fitted) from None
        self.fitted = max(self.fitted, tokens)

    def _stop_if_asked(self) -> None:
        if self.should_stop():
            raise Stopped


def even_parts(items: Sequence[int], limit: int) -> list[Sequence[int]]:
    """The fewest parts of at most `limit`, all of about the same size: no straggler gets a whole step."""
    parts = -(-len(items) // limit)
    return [items[len(items) * p // parts : len(items) * (p + 1) // parts] for p in range(parts)]


def micro_batches(
    sizes: dict[int, int], limit: int, *, budget: int = 0, packed: bool = False
) -> list[list[int]]:
    """Row numbers, longest first, in runs of at most `limit` rows and PADDING_LIMIT padding.

    `sizes` maps the number of a row to its tokens. A `budget` bounds the tokens of a run, padding included,
    but for a row that is longer on its own. `packed` rows have no padding.
    """
    out: list[list[int]] = []
    used = 0
    for i in sorted(sizes, key=lambda i: (-sizes[i], i)):
        longest = sizes[out[-1][0]] if out else 0
        padded = longest * (len(out[-1]) + 1) if out else 0
        wasted = 0 if packed else padded - used - sizes[i]
        full = out and (len(out[-1]) == limit or (budget and used + sizes[i] + wasted > budget))
        if not out or full or wasted > PADDING_LIMIT * padded:
            out.append([])
            used = 0
        out[-1].append(i)
        used += sizes[i]
    return out


def spread(rows: Sequence[Tensor], mask_BT: Tensor) -> Tensor:
    """Put the values of each row, [T] without padding, where its mask is True; 0 elsewhere."""
    flat = torch.cat(list(rows))
    return torch.zeros(mask_BT.shape, dtype=flat.dtype, device=flat.device).masked_scatter(mask_BT, flat)
