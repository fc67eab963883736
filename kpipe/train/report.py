"""What an update cost, and the one line that a person reads about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from kpipe import __version__
from kpipe.config import Config, TrainConfig
from kpipe.train.learner import Learner
from kpipe.train.tally import Stopwatch, peak_memory_mib
from kpipe.train.update import Learned

PHASES = ("wait", "prox", "ref", "fwd_bwd", "optim", "save", "publish")


PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "GH200": 989.0, "B200": 2250.0, "A100": 312.0, "L40S": 362.0}
"""Dense bfloat16, by the makers' data sheets; train.peak_tflops wins over them."""


def cost(learned: Learned, watch: Stopwatch, learner: Learner, cfg: TrainConfig) -> dict[str, Any]:
    """Seconds by phase and without the wait, tokens per second, utilization, peak memory in MiB.

    `mfu` counts 6 operations per parameter and token trained and 2 per token of a forward pass alone, against
    the device's peak; None where that is not known.
    """
    seconds = {f"seconds_{phase}": watch.seconds.get(phase, 0.0) for phase in PHASES}
    learning = watch.seconds.get("fwd_bwd", 0.0) + watch.seconds.get("optim", 0.0)
    passing = learning + watch.seconds.get("prox", 0.0) + watch.seconds.get("ref", 0.0)
    forwarded = learned.tokens + learned.tokens_frozen
    operations = (6 * learned.tokens + 2 * learned.tokens_frozen) * learner.size
    peak = 1e12 * (cfg.peak_tflops or _known_peak(watch.device))
    return {
        **seconds,
        "seconds": sum(seconds.values()) - seconds["seconds_wait"],
        "tokens_trained": learned.tokens,
        "tokens_per_second": learned.tokens / learning if learning else 0.0,
        "tokens_forwarded": forwarded,
        "tokens_forwarded_per_second": forwarded / passing if passing else 0.0,
        "mfu": operations / passing / peak if passing and peak else None,
        "peak_memory_mib": peak_memory_mib(watch.device),
    }


def _known_peak(device: torch.device) -> float:
    """In TFLOP/s; 0 for a device that is not in the table."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device).replace("-", " ").split()
    return next((peak for key, peak in PEAK_TFLOPS.items() if key in name), 0.0)


_ARITHMETIC_IN_POLICY = ("temperature", "max_new_tokens")
_NOT_ARITHMETIC = {"max_steps", "keep_last", "keep_every", "threads", "device", "sinks", "peak_tflops"}
_LATER = (
    "drop_truncated",
    "policy_loss",
    "importance_sampling_level",
    "reference",
    "correction_floor",
    "packing",
    "max_tokens_per_micro_batch",
    "gradient_checkpointing",
    "lora_rank",
    "lora_alpha",
    "lora_targets",
)
"""Settings that came later: at their defaults they are not in the digest, so that older digests stay true."""


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
    defaults = TrainConfig.model_fields
    unchanged = {name for name in _LATER if getattr(config.train, name) == defaults[name].default}
    tree = config.train.model_dump(mode="json", exclude=_NOT_ARITHMETIC | unchanged)
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
