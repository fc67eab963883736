"""What an update measures while it runs. Sums stay on the device until the end: nobody waits for it."""

from __future__ import annotations

import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from kpipe.config import TrainConfig
from kpipe.train.loss import Loss, kl_penalty, log_ratios, outside

KIB_PER_MIB = 1024


class Stopwatch:
    """Seconds by name, added up over all uses; waits for the device, so that its work is not missed."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            self.seconds[name] += time.perf_counter() - started


class Tally:
    """Sums and maxima over the tokens of an update, and counts of its optimizer steps."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sums: dict[str, Tensor] = {}
        self.tops: dict[str, Tensor] = {}
        self.grad_norms: list[float] = []
        self.skipped = 0
        self.tokens_trained = 0
        self.tokens_frozen = 0

    def loss(self, loss: Loss) -> None:
        self._add("loss", loss.total.detach())
        self._add("policy_loss", loss.policy)

    def tokens(
        self,
        logp_BT: Tensor,
        prox_BT: Tensor,
        ref_BT: Tensor | None,
        advantage_B: Tensor,
        mask_BT: Tensor,
        cfg: TrainConfig,
    ) -> None:
        """Ratio, clipping and divergence of the tokens of one micro-batch."""
        log_ratio_BT = log_ratios(logp_BT, prox_BT, mask_BT, cfg.importance_sampling_level)
        low_BT, high_BT = outside(log_ratio_BT, logp_BT, prox_BT, advantage_B, cfg)
        ratio = log_ratio_BT[mask_BT].exp()
        self._add("tokens", mask_BT.sum())
        self._add("ratio", ratio.sum())
        self._top("ratio_max", ratio.max())
        self._add("clipped_low", (low_BT & mask_BT).sum())
        self._add("clipped_high", (high_BT & mask_BT).sum())
        self._add("approx_kl", kl_penalty((logp_BT - prox_BT)[mask_BT], "k3").sum())
        if ref_BT is not None:
            self._add("kl", kl_penalty((ref_BT - logp_BT)[mask_BT], cfg.kl_estimator).sum())

    def entropy(self, entropy_BT: Tensor, mask_BT: Tensor) -> None:
        self._add("entropy", entropy_BT[mask_BT].sum())
        self._add("entropy_tokens", mask_BT.sum())

    def mismatch(self, start: Tensor, behaviour: Tensor, cap: float) -> None:
        """How far the policy at the start of the update is from those that sampled; both [N] log-probs.

        Ratios over `cap` are those that a truncating correction cuts.
        """
        ratio = (start - behaviour).exp()
        self._add("mismatch_over_cap", (ratio > cap).sum())
        self._add("mismatch_tokens", torch.tensor(len(ratio)))
        self._add("mismatch_k3", kl_penalty(start - behaviour, "k3").sum())
        self._add("mismatch_ratio", ratio.sum())
        self._add("mismatch_square", (ratio.double() ** 2).sum())
        self._top("mismatch_ratio_max", ratio.max())

    def optimizer_step(self, grad_norm: float | None) -> None:
        """None is a step that was skipped because its gradient was not finite."""
        if grad_norm is None:
            self.skipped += 1
        else:
            self.grad_norms.append(grad_norm)

    def metrics(self) -> dict[str, float]:
        """Means per token, `loss` and `policy_loss` per optimizer step. 0 where nothing was trained."""
        sums = {name: value.item() for name, value in self.sums.items()}
        steps = max(1, len(self.grad_norms) + self.skipped)

        def mean(name: str, over: str = "tokens") -> float:
            return sums[name] / sums[over] if name in sums else 0.0

        counted, square = sums.get("mismatch_tokens", 0.0), sums.get("mismatch_square", 0.0)
        return {
            "loss": sums.get("loss", 0.0) / steps,
            "policy_loss": sums.get("policy_loss", 0.0) / steps,
            "kl": mean("kl"),
            "approx_kl": mean("approx_kl"),
            "entropy": mean("entropy", "entropy_tokens"),
            "clip_fraction_low": mean("clipped_low"),
            "clip_fraction_high": mean("clipped_high"),
            "ratio_mean": mean("ratio"),
            "ratio_max": self._highest("ratio_max"),
            "mismatch_k3": mean("mismatch_k3", "mismatch_tokens"),
            "mismatch_ratio_mean": mean("mismatch_ratio", "mismatch_tokens"),
            "mismatch_ratio_max": self._highest("mismatch_ratio_max"),
            "mismatch_truncated_fraction": mean("mismatch_over_cap", "mismatch_tokens"),
            "mismatch_ess": sums["mismatch_ratio"] ** 2 / (counted * square) if square else 0.0,
            "grad_norm": sum(self.grad_norms) / max(1, len(self.grad_norms)),
            "optimizer_steps": len(self.grad_norms),
            "skipped_steps": self.skipped,
        }

    def _add(self, name: str, value: Tensor) -> None:
        value = value.to(self.device, torch.float64)
        self.sums[name] = self.sums[name] + value if name in self.sums else value

    def _top(self, name: str, value: Tensor) -> None:
        self.tops[name] = torch.maximum(self.tops[name], value) if name in self.tops else value

    def _highest(self, name: str) -> float:
        return self.tops[name].item() if name in self.tops else 0.0


def peak_memory_mib(device: torch.device) -> float:
    """Highest memory use so far: of the device's allocator on CUDA, of this process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / KIB_PER_MIB**2
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_PER_MIB
