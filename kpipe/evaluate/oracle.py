"""The process that knows the right answers: references, seeds, inputs, expected outputs, the clock.

It never imports a kernel. Runs as ``python -m kpipe.evaluate.oracle FD CORE CONFIG`` and judges one
kernel at a time: that is the device's slot.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import traceback
from functools import lru_cache
from typing import Any

import torch

from kpipe.config import EvaluateConfig
from kpipe.domain.verdict import Outcome
from kpipe.evaluate import sandbox, wire
from kpipe.evaluate.reference import Reference, Trouble
from kpipe.evaluate.subject import Failure, Gone, Subject
from kpipe.evaluate.timing import CallFailed
from kpipe.evaluate.trials import Failed, Trials

KEPT_REFERENCES = 64
RUNNER_S = 60.0
"""More seconds than the kernel has, for the reference's own process."""
_reference = lru_cache(maxsize=KEPT_REFERENCES)(Reference)


def judge(
    request: dict[str, Any], fds: list[int], config: EvaluateConfig, core: int | None
) -> dict[str, Any]:
    """The verdict as JSON. `fds`: the reference, socket and pidfd of kernel and runner; closed here."""
    source = wire.read_file(fds[0]).decode("utf-8")
    left_s = request["left_s"]
    kernel = Subject(request["kernel"], fds[2], socket.socket(fileno=fds[1]), left_s)
    runner = Subject(request["runner"], fds[4], socket.socket(fileno=fds[3]), left_s + RUNNER_S)
    trials = None
    verdict: dict[str, Any]
    try:
        if core is not None:
            for subject in (kernel, runner):
                subject.pin(core)
        trials = Trials(_reference(source), kernel, runner, config, request.get("seeds"))
        with torch.no_grad():
            timing = trials.run()
        numbers = {
            "time_ms": timing.time_ms,
            "baseline_ms": timing.baseline_ms,
            "speedup": timing.speedup.value,
        }
        bounds = {"speedup_low": timing.speedup.low, "speedup_high": timing.speedup.high}
        verdict = {"outcome": Outcome.CORRECT, "detail": timing.detail, "log": "", **numbers, **bounds}
    except Failed as failed:
        verdict = {"outcome": failed.outcome, "detail": failed.detail, "log": failed.log}
    except (Failure, CallFailed) as failure:
        verdict = _stopped(failure) if failure.subject is kernel else _infra("the reference's process failed")
    except Trouble as trouble:
        verdict = _infra(str(trouble))
    finally:
        kernel.close()
        runner.close()
    verdict["detail"] = {**(trials.detail if trials else {}), **verdict["detail"]}
    return verdict


def _stopped(failure: Failure | CallFailed) -> dict[str, Any]:
    """How a kernel ended that did not answer; the worker knows its exit status."""
    if isinstance(failure, CallFailed):
        outcome = Outcome.OOM if failure.reply["error"] == "oom" else Outcome.CRASH
        return {"outcome": outcome, "detail": {"timed": True}, "log": str(failure)}
    if isinstance(failure, Gone):
        return {"outcome": Outcome.CRASH, "detail": {"gone": True}, "log": ""}
    return {"outcome": Outcome.TIMEOUT, "detail": {}, "log": "The kernel did not finish in time."}


def _infra(log: str) -> dict[str, Any]:
    return {"outcome": Outcome.INFRA, "detail": {}, "log": log}


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    core = json.loads(sys.argv[2])
    config = EvaluateConfig.model_validate_json(sys.argv[3])
    sandbox.hide()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the worker's to answer
    torch.set_num_threads(1)
    if core is not None:
        os.sched_setaffinity(0, {core})
    gc.collect()
    gc.freeze()
    wire.send(control, {"ready": True})
    try:
        while True:
            request, fds = wire.receive(control)
            try:
                verdict = judge(request, fds, config, core)
            except Exception:
                verdict = _infra(f"the oracle failed: {traceback.format_exc(limit=-4)}")
            wire.send(control, verdict)
    except wire.Closed:
        return


if __name__ == "__main__":
    main()
