"""coder.max_usd from the command line: collection ends with a sentence, and the same command goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kpipe.loopback.answers import code_reply, says
from kpipe.loopback.server import Loopback, serving
from kpipe.policy.tiny import make_model, make_tokenizer
from kpipe.store import payments, runs
from kpipe.store.database import Database
from kpipe.store.verify import verify

REFERENCE_ONLY = code_reply("import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n")
WORST, PAID = 0.02, 0.005  # two replies of 100 tokens at most at 100 dollars a million, one of 50 in fact


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    tokenizer = make_tokenizer(["Fuse the loops."])
    make_model(tokenizer, 0).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def collect(cwd: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    words = [word for setting in settings for word in ("--set", setting)]
    return subprocess.run(
        [sys.executable, "-m", "kpipe", "collect", *words],
        cwd=cwd,
        env={**os.environ, "OPENAI_API_KEY": "k"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def test_it_stops_before_the_budget_is_exceeded_and_goes_on(model: Path, tmp_path: Path) -> None:
    with serving(Loopback(default=says(REFERENCE_ONLY))) as server:
        settings = [
            *("policy.kind=local", f"policy.model={model}", "policy.max_new_tokens=3", "coder.kind=openai"),
            *(f"coder.base_url={server.url}", "coder.max_tokens=100", "coder.continuations=0"),
            *("coder.usd_per_million_in=0.0", "coder.usd_per_million_out=100.0", "coder.samples=2"),
        ]
        refused = collect(tmp_path, *settings, "coder.max_usd=0.01")
        assert refused.returncode == 2
        assert "coder.max_usd = 0.01 is reached" in refused.stderr
        assert server.requests == [], "not even one call fits"
        first = collect(tmp_path, *settings, "coder.max_usd=0.05")
        assert first.returncode == 2, first.stderr
        assert "Traceback" not in first.stderr
        paid = server.answered
        assert paid == 7, "an eighth could have gone beyond it"
        assert "Go on with --set coder.max_usd=1" in first.stderr
        second = collect(tmp_path, *settings, "coder.max_usd=0.08")
        assert second.returncode == 2, second.stderr
        assert server.answered > paid
        assert max(server.delivered.values()) == 2, "one body per sample, and nothing is paid twice"
    with Database.open(f"sqlite:///{tmp_path / 'kpipe.db'}") as db:
        run = db.read(runs.get, "default")
        assert run
        account = db.read(payments.account, run.id)
        assert account.reserved == 0
        assert account.paid == pytest.approx(server.answered * PAID)
        assert account.paid <= 0.08 < account.paid + WORST
        db.read(verify)
