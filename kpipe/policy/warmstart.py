"""The warm start of the tiny policy: fine-tuning on suggestions that are well worded and blindly chosen."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kpipe.domain.problem import Problem
from kpipe.domain.prompt import PromptTemplate, State, render_prompt
from kpipe.domain.verdict import Outcome
from kpipe.policy import grammar
from kpipe.policy.chat import encode

PROMPTS, SUGGESTIONS = 8, 8
"""A batch: so many prompts, and for each of them so many suggestions, which read it only once."""

POOL = 16
"""Batches that are sorted by length together, so that little of a batch is padding."""

LEARNING_RATE = 8e-3
RISE_STEPS = 20

MOST_APPLIED = 4
NEVER_SUGGESTED = 0.5
"""Share of first turns among the prompts where nothing is applied."""

RESULTS = (
    (Outcome.COMPILE_ERROR, None),
    (Outcome.WRONG_VALUE, None),
    (Outcome.UNCHANGED, None),
    *((Outcome.CORRECT, speedup) for speedup in (0.2, 0.7, 1.5, 3.0, 6.0)),
)
"""One verdict for every wording of the result."""


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids of a prompt and of suggestions for it, end tokens included."""

    prompt: list[int]
    suggestions: list[list[int]]

    def __len__(self) -> int:
        return len(self.prompt) + sum(map(len, self.suggestions))


@dataclass(frozen=True, slots=True)
class Examples:
    """Random states of an episode, and suggestions whose strategy is drawn without a look at them."""

    problems: Sequence[Problem]
    template: PromptTemplate

    def prompt(self, rng: random.Random) -> tuple[str, Problem]:
        """A user message, and the problem that it is about."""
        problem = rng.choice(self.problems)
        return render_prompt(self.template, self._state(problem, rng)), problem

    def suggestion(self, problem: Problem, rng: random.Random) -> str:
        return grammar.suggestion(rng.choice(grammar.STRATEGIES), problem.name, rng)

    def _state(self, problem: Problem, rng: random.Random) -> State:
        applied = rng.sample(grammar.STRATEGIES, rng.randint(0, MOST_APPLIED))
        if not applied and rng.random() < NEVER_SUGGESTED:
            return State(problem.name, problem.source, problem.source, problem.source)
        outcome, speedup = rng.choice(RESULTS)
        return State(
            problem_name=problem.name,
            reference=problem.source,
            kernel_a=problem.source,
            kernel_b=f"# applied: {', '.join(applied)}\n{problem.source}",
            suggestion=self.suggestion(problem, rng),
            outcome=outcome,
            speedup=speedup,
        )


def finetune(
    model: Any,
    tokenizer: Any,
    examples: Examples,
    steps: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> None:
    """Train `model` in place on `steps` batches; only suggestions and their end tokens count in the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _share_of_rate(step, steps))
    model.train()
    for step, rows in enumerate(_batches(tokenizer, examples, steps, random.Random(seed))):
        optimizer.zero_grad()
        torch.autograd.backward(suggestion_loss(model, rows))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if progress:
            progress((step + 1) / steps)
    model.eval()


def suggestion_loss(model: Any, rows: Sequence[Row]) -> Tensor:
    """Mean negative log-probability of the suggestions' tokens, each suggestion right behind its prompt.

    The suggestions of a row lie one after the other and do not see one another: to each of them its prompt is
    the whole past. So a prompt goes through the model once, however many suggestions it has.
    """
    longest = max(map(len, rows))
    tokens, positions, owners = torch.zeros(3, len(rows), longest, dtype=torch.long)
    owners.fill_(-1)
    predictors, targets = [], []
    for r, row in enumerate(rows):
        start = len(row.prompt)
        tokens[r, : len(row)] = torch.tensor([*row.prompt, *(t for said in row.suggestions for t in said)])
        positions[r, :start] = torch.arange(start)
        owners[r, :start] = 0
        for number, said in enumerate(row.suggestions, 1):
            end = start + len(said)
            positions[r, start:end] = torch.arange(len(row.prompt), len(row.prompt) + len(said))
            owners[r, start:end] = number
            predictors += [r * longest + at for at in (len(row.prompt) - 1, *range(start, end - 1))]
            targets += said
            start = end
    visible = (owners[:, None, :] == 0) | (owners[:, None, :] == owners[:, :, None])
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    states = model.get_decoder()(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=(visible & causal)[:, None],
        use_cache=False,
    ).last_hidden_state.flatten(0, 1)
    logits = model.get_output_embeddings()(states.index_select(0, torch.tensor(predictors)))
    return torch.nn.functional.cross_entropy(logits, torch.tensor(targets))


def _share_of_rate(step: int, steps: int) -> float:
    """A short rise, then half a cosine down to nothing."""
    return min(1.0, (step + 1) / RISE_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))


def _batches(tokenizer: Any, examples: Examples, steps: int, rng: random.Random) -> Iterator[list[Row]]:
    for first in range(0, steps, POOL):
        count = min(POOL, steps - first)
        rows = sorted(_rows(tokenizer, examples, count * PROMPTS, rng), key=len)
        for start in rng.sample(range(0, len(rows), PROMPTS), count):
            yield rows[start : start + PROMPTS]


def _rows(tokenizer: Any, examples: Examples, count: int, rng: random.Random) -> list[Row]:
    asked = [examples.prompt(rng) for _ in range(count)]
    said = [examples.suggestion(problem, rng) for _, problem in asked for _ in range(SUGGESTIONS)]
    prompts = encode(tokenizer, [prompt for prompt, _ in asked])
    ids = [[*said, tokenizer.eos_token_id] for said in tokenizer(said, add_special_tokens=False)["input_ids"]]
    return [Row(prompt, ids[i * SUGGESTIONS : (i + 1) * SUGGESTIONS]) for i, prompt in enumerate(prompts)]
