"""A transformers checkpoint behind the completion endpoints: the tiny policy, or any small model."""

from __future__ import annotations

import copy
import json
import secrets
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from kpipe.errors import PolicyError
from kpipe.loopback.completions import Continuation, Wanted
from kpipe.policy.chat import stop_ids
from kpipe.policy.checkpoint import read_model, read_tokenizer
from kpipe.policy.logprobs import completion_logprobs
from kpipe.policy.sampling import Drawn, sample, uniforms

GREEDY = 1e-4
"""Temperature 0 is sampled at this one: the likeliest token has all of the probability."""


class CheckpointEngine:
    """Implements `kpipe.loopback.completions.Engine` on the CPU, in float32.

    A seed draws the same tokens as the policy `local` does with it. `processed` False reports
    log-probabilities before the temperature. Raises PolicyError when there is no checkpoint at `path`.
    """

    def __init__(self, path: Path, name: str = "", *, processed: bool = True) -> None:
        self.name = name or path.name
        self.processed = processed
        self.tokenizer = read_tokenizer(path)
        self.models: dict[str, Any] = {self.name: read_model(path, "float32")}
        config = self.models[self.name].config
        self.context = int(config.max_position_embeddings)
        self.vocabulary = int(config.vocab_size)
        self._end = stop_ids(self.tokenizer, config)

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def piece(self, token: int) -> str:
        return str(self.tokenizer.decode([token]))

    def generate(self, wanted: Sequence[Wanted], model: str) -> list[Continuation]:
        """Those that are sampled alike go through the model together."""
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for i, w in enumerate(wanted):
            alike[w.max_tokens, w.temperature, w.top_p, w.stop, w.ignore_end].append(i)
        made: dict[int, Continuation] = {}
        for rows in alike.values():
            made |= zip(rows, self._together([wanted[i] for i in rows], self.models[model]), strict=True)
        return [made[i] for i in range(len(wanted))]

    def _together(self, wanted: list[Wanted], model: Any) -> list[Continuation]:
        w = wanted[0]
        stop = w.stop | (frozenset() if w.ignore_end else self._end)
        temperature = w.temperature or GREEDY
        seeds = [secrets.randbits(48) if each.seed is None else each.seed for each in wanted]
        draws = torch.stack([uniforms(seed, w.max_tokens) for seed in seeds])
        prompts = [each.prompt for each in wanted]
        sampled_from = model if w.top_p == 1 else _Nucleus(model, w.top_p, temperature)
        drawn = sample(sampled_from, prompts, draws, temperature, stop)
        raw = None if self.processed else self._raw_logprobs(model, prompts, drawn)
        return [
            Continuation(d.ids, raw[i] if raw else d.logprobs, self._text(d), d.stopped)
            for i, d in enumerate(drawn)
        ]

    def _raw_logprobs(
        self, model: Any, prompts: Sequence[Sequence[int]], drawn: Sequence[Drawn]
    ) -> list[list[float]]:
        with torch.no_grad():
            logp, mask, _ = completion_logprobs(model, prompts, [d.ids for d in drawn], 1.0)
        return [row[kept].tolist() for row, kept in zip(logp, mask, strict=True)]

    def _text(self, drawn: Drawn) -> str:
        spoken = drawn.ids[:-1] if drawn.stopped else drawn.ids
        return str(self.tokenizer.decode(spoken, skip_special_tokens=True))

    def load(self, path: str) -> None:
        self._take(self.name, path)

    def load_adapter(self, name: str, path: str) -> None:
        """A LoRA adapter in PEFT's format, or a whole checkpoint of the same shape."""
        folder = Path(path)
        if (folder / "adapter_config.json").is_file():
            self.models[name] = _with_lora(self.models[self.name], folder)
        else:
            self._take(name, path)

    def unload_adapter(self, name: str) -> None:
        del self.models[name]

    def _take(self, name: str, path: str) -> None:
        try:
            self.models[name] = read_model(Path(path), "float32")
        except PolicyError as error:
            raise ValueError(error.message) from None


class _Nucleus:
    """A model whose next-token logits are cut to the smallest set with probability `top_p`."""

    def __init__(self, model: Any, top_p: float, temperature: float) -> None:
        self._model, self._top_p, self._temperature = model, top_p, temperature
        self.config, self.device = model.config, model.device

    def __call__(self, **inputs: Any) -> Any:
        output = self._model(**inputs)
        output.logits = self._cut(output.logits)
        return output

    def _cut(self, logits: Tensor) -> Tensor:
        ordered, places = (logits.float() / self._temperature).softmax(-1).sort(-1, descending=True)
        outside = ordered.cumsum(-1) - ordered >= self._top_p
        return logits.masked_fill(torch.zeros_like(outside).scatter(-1, places, outside), -torch.inf)


def _with_lora(base: Any, folder: Path) -> Any:
    """A copy of the model with W + scale x B A in place of each adapted W. Raises ValueError."""
    try:
        settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} holds no complete adapter ({error})") from None
    scale = settings["lora_alpha"] / settings["r"] ** (0.5 if settings.get("use_rslora") else 1)
    model = copy.deepcopy(base)
    parameters = dict(model.named_parameters())
    for name, b in tensors.items():
        if ".lora_B." not in name:
            continue
        target = name.removeprefix("base_model.model.").partition(".lora_B.")[0] + ".weight"
        if target not in parameters:
            raise ValueError(f"the model has no {target}")
        with torch.no_grad():
            parameters[target] += scale * (b.float() @ tensors[name.replace("lora_B", "lora_A")].float())
    return model
