"""A policy in this process: any text model that transformers loads, on CPU or GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers

from kpipe.config import PolicyConfig
from kpipe.errors import PolicyError
from kpipe.policy.base import FinishReason, Suggestion, SuggestRequest
from kpipe.policy.chat import Fitted, encode, fingerprint, fit, stop_ids, too_long
from kpipe.policy.checkpoint import check_architecture, choose_device, locate, read_model, read_tokenizer
from kpipe.policy.files import checkpoint_files, ensure_directory
from kpipe.policy.sampling import Drawn, sample, uniforms

TOKENS_TOGETHER = {"cpu": 1 << 14, "cuda": 1 << 17}
"""Rows x (longest prompt + new tokens) of one batch: it bounds the cache and the activations."""


class LocalPolicy:
    """Implements `kpipe.policy.base.Policy`."""

    def __init__(self, config: PolicyConfig, path: Path, version: int = 0) -> None:
        torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
        self.config = config
        self.path = path
        self.version = version
        self.device = choose_device(config.device)
        self.tokenizer = read_tokenizer(path)
        self.model = read_model(path, config.dtype, self.device)
        check_architecture(self.model, path)
        self._stop = stop_ids(self.tokenizer, self.model.config)
        self._sampling = {
            "engine": f"transformers {transformers.__version__}",
            "dtype": config.dtype,
            "temperature": config.temperature,
            "max_new_tokens": config.max_new_tokens,
            **fingerprint(self.tokenizer),
        }

    def load(self, path: str, version: int) -> None:
        """Take over the weights at `path`, which must have this model's architecture and shapes."""
        fresh = read_model(Path(path), self.config.dtype)
        ours, theirs = self.model.state_dict(), fresh.state_dict()
        if type(fresh) is not type(self.model):
            raise _other_model(
                f"{path} holds a {type(fresh).__name__}, {self.path} a {type(self.model).__name__}"
            )
        for name in sorted(ours.keys() | theirs.keys()):
            here, there = (tuple(side[name].shape) if name in side else "missing" for side in (ours, theirs))
            if here != there:
                raise _other_model(f"{name} is {there} in {path} and {here} in {self.path}")
        with torch.no_grad():
            for name, tensor in ours.items():
                tensor.copy_(theirs[name])
        self.path, self.version = Path(path), version

    def suggest(self, requests: Sequence[SuggestRequest]) -> list[Suggestion]:
        """One suggestion per request, in their order; a prompt over the limit gets none."""
        limit = self._longest_prompt()
        fitted = fit(self.tokenizer, requests, limit)
        prompts = [f.ids for f in fitted]
        said: dict[int, Suggestion] = {
            i: too_long(f, self._sampling_of(requests[i], f))
            for i, f in enumerate(fitted)
            if len(f.ids) > limit
        }
        rest = [i for i in range(len(prompts)) if i not in said]
        for rows in self._batches(rest, prompts):
            draws = torch.stack([uniforms(requests[i].seed, self.config.max_new_tokens) for i in rows])
            for i, drawn in zip(rows, self._sample([prompts[i] for i in rows], draws), strict=True):
                said[i] = self._suggestion(requests[i], fitted[i], drawn)
        return [said[i] for i in range(len(requests))]

    def room(self, prompts: Sequence[str]) -> list[int]:
        limit = self._longest_prompt()
        return [limit - len(ids) for ids in encode(self.tokenizer, prompts)]

    def _sample(self, prompts: list[list[int]], draws: torch.Tensor) -> list[Drawn]:
        try:
            return sample(self.model, prompts, draws, self.config.temperature, self._stop)
        except torch.OutOfMemoryError:
            raise PolicyError(
                f"Sampling {len(prompts)} suggestions does not fit into the memory of {self.device}.",
                "Lower policy.batch_size or policy.max_prompt_tokens.",
            ) from None

    def _suggestion(self, request: SuggestRequest, fitted: Fitted, drawn: Drawn) -> Suggestion:
        spoken = drawn.ids[:-1] if drawn.stopped else drawn.ids
        text = self.tokenizer.decode(spoken, skip_special_tokens=True).strip()
        reason: FinishReason = "stop" if drawn.stopped else "length"
        sampling = self._sampling_of(request, fitted)
        return Suggestion(text, fitted.ids, drawn.ids, drawn.logprobs, reason, sampling, fitted.prompt)

    def _sampling_of(self, request: SuggestRequest, fitted: Fitted) -> dict[str, object]:
        return {**self._sampling, "seed": request.seed, **fitted.note()}

    def _longest_prompt(self) -> int:
        """The configured limit, or what the model's positions leave beside the new tokens."""
        positions = getattr(self.model.config, "max_position_embeddings", None)
        configured = self.config.max_prompt_tokens
        return min(configured, positions - self.config.max_new_tokens) if positions else configured

    def _batches(self, rows: list[int], prompts: list[list[int]]) -> Iterator[list[int]]:
        """Rows of similar length together, longest first, each batch within the budget of the device."""
        budget = TOKENS_TOGETHER.get(self.device.type, TOKENS_TOGETHER["cpu"])
        batch: list[int] = []
        for i in sorted(rows, key=lambda i: -len(prompts[i])):
            longest = len(prompts[batch[0] if batch else i]) + self.config.max_new_tokens
            if batch and (len(batch) + 1) * longest > budget:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch


def _other_model(difference: str) -> PolicyError:
    return PolicyError(
        f"These weights belong to another model: {difference}.",
        "Load a checkpoint of the same run, or start a new run with --run NAME.",
    )


def link_base(path: Path, config: PolicyConfig) -> str:
    """Make `path` a directory of links to the files of `config.model`, once that has proved to be usable."""
    source = locate(config.model)

    def build(partial: Path) -> None:
        LocalPolicy(config, source)
        for file in checkpoint_files(source):
            (partial / file.name).symlink_to(file.resolve())

    return ensure_directory(path, str(source), build)
