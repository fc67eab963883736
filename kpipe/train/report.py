"""What an update cost, and the one line that a person reads about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from kpipe import __version__
from kpipe.config import Config
from kpipe.train.tally import Stopwatch, peak_memory_mib
from kpipe.train.update import Learned

PHASES = ("wait", "prox", "ref", "fwd_bwd", "optim", "save", "publish")


def cost(learned: Learned, watch: Stopwatch) -> dict[str, Any]:
    """Seconds by phase and without the wait, tokens trained per second, peak memory in MiB."""
    seconds = {f"seconds_{phase}": watch.seconds.get(phase, 0.0) for phase in PHASES}
    learning = watch.seconds.get("fwd_bwd", 0.0) + watch.seconds.get("optim", 0.0)
    return {
        **seconds,
        "seconds": sum(seconds.values()) - seconds["seconds_wait"],
        "tokens_trained": learned.tokens,
        "tokens_per_second": learned.tokens / learning if learning else 0.0,
        "peak_memory_mib": peak_memory_mib(watch.device),
    }


_ARITHMETIC_IN_POLICY = ("temperature", "max_new_tokens")
_NOT_ARITHMETIC = {"max_steps", "keep_last", "threads", "device"}


def environment(config: Config, device: torch.device) -> dict[str, Any]:
    """What decides, beside samples and seed, which bits an update gives; a replay looks at it for reasons."""
    return {
        "kpipe": __version__,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "settings": settings_digest(config),
    }


def settings_digest(config: Config) -> str:
    """Digest of the settings that enter the arithmetic of an update."""
    tree = config.train.model_dump(mode="json", exclude=_NOT_ARITHMETIC)
    tree |= config.policy.model_dump(mode="json", include=set(_ARITHMETIC_IN_POLICY))
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:16]


def step_line(step: int, last: int, m: Mapping[str, Any]) -> str:
    """For example: update 12/30  reward 1.84  loss -0.0120  KL 0.0310  entropy 1.20  clipped 4.1%  ..."""
    reward = "none" if m["reward_mean"] is None else f"{m['reward_mean']:.2f}"
    clipped = m["clip_fraction_low"] + m["clip_fraction_high"]
    line = (
        f"update {step}/{last}  reward {reward}  loss {m['loss']:.4f}  KL {m['kl']:.4f}"
        f"  entropy {m['entropy']:.2f}  clipped {clipped:.1%}  grad norm {m['grad_norm']:.2f}"
        f"  {m['seconds']:.1f} s after {m['seconds_wait']:.1f} s of waiting"
    )
    if m["skipped_steps"]:
        line += f"  SKIPPED {m['skipped_steps']} steps: gradient not finite"
    if not m["samples_trained"]:
        line += "  NOTHING TO LEARN: every sample was dropped"
    return line
