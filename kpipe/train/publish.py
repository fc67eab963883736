"""A policy of a run for other people: a directory in the layout of the Hugging Face hub, with a model card."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from kpipe.config import from_json
from kpipe.errors import PolicyError, UsageError
from kpipe.policy import lora
from kpipe.policy.checkpoint import read_model
from kpipe.policy.files import checkpoint_files, ensure_directory
from kpipe.store import inspect, policies, training
from kpipe.store.database import Database
from kpipe.store.records import PolicyVersion, Run
from kpipe.train import checkpoint
from kpipe.train.card import Facts, model_card

CARD = "README.md"


def choose(db: Database, run: Run, step: int | None) -> PolicyVersion:
    """Version `step` of the run, by default its newest. Raises UsageError, TrainError when it is damaged."""
    versions = db.read(policies.list_, run.id)
    if not versions:
        raise UsageError(f"Run {run.name!r} has no policy yet.", "Start it first: kpipe run.")
    found = versions[-1] if step is None else next((v for v in versions if v.step == step), None)
    if found is None:
        raise UsageError(
            f"Run {run.name!r} has no policy version {step}.", f"It has 0 to {versions[-1].step}."
        )
    if step is not None and not Path(found.path).is_dir():
        kept = ", ".join(str(v.step) for v in versions if Path(v.path).is_dir())
        raise UsageError(
            f"The checkpoint of version {step}, {found.path}, is not on this disk any more.",
            f"Versions that are: {kept or 'none'}. train.keep_every keeps more.",
        )
    checkpoint.verify_weights(found, versions)
    return found


def export(db: Database, run: Run, version: PolicyVersion, to: Path, *, merged: bool = False) -> None:
    """Write the policy to the new directory `to`; `merged` puts an adapter into its weights.

    Raises KpipeError.
    """
    if to.exists():
        raise UsageError(f"{to} exists already.", "Give a new directory to --to.")
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "policy"
        made.mkdir()
        write(db, run, version, made, merged=merged)
        ensure_directory(to, f"export of {version.digest}", lambda path: _move(made, path))
    (to / "kpipe.json").unlink()


def push(db: Database, run: Run, version: PolicyVersion, to: str, *, merged: bool, private: bool) -> str:
    """Upload the policy to the hub's repository `to`; its address. Raises KpipeError."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    with tempfile.TemporaryDirectory() as folder:
        write(db, run, version, Path(folder), merged=merged)
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        try:
            url = api.create_repo(to, private=private, exist_ok=True)
            message = f"kpipe: run {run.name}, update {version.step}"
            api.upload_folder(repo_id=to, folder_path=folder, commit_message=message)
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise PolicyError(
                f"The hub does not take {to} ({type(error).__name__}).",
                "Check the name OWNER/NAME, the network, and that HF_TOKEN may write there.",
            ) from None
    return str(url)


def write(db: Database, run: Run, version: PolicyVersion, path: Path, *, merged: bool) -> None:
    """Fill the empty directory `path`: weights or adapter, tokenizer, card."""
    source = Path(version.path)
    adapter = lora.is_adapter(source) and not merged
    skip = {checkpoint.STATE_FILE}
    if lora.is_adapter(source) and merged:
        read_model(source, "float32").save_pretrained(path)
        skip |= {lora.CONFIG, lora.WEIGHTS}
    for file in checkpoint_files(source):
        if file.name not in skip:
            shutil.copyfile(file, path / file.name)
    facts = _facts(db, run, version, adapter=adapter)
    if adapter:
        _rebase(path / lora.CONFIG, facts.base)
    (path / CARD).write_text(model_card(facts), encoding="utf-8")


def _facts(db: Database, run: Run, version: PolicyVersion, *, adapter: bool) -> Facts:
    config = from_json(run.config)
    base = config.policy.model if config.policy.kind == "local" else "kpipe's built-in tiny policy"
    if adapter and config.policy.kind == "tiny":
        base = str(Path(version.path).parent / "step-000000")
    steps = [s for s in db.read(training.committed, run.id) if s.step <= version.step]
    names = sorted(set(db.read(training.problem_names, run.id).values()))
    turns = db.read(inspect.settled_turns, run.id)
    best = db.read(inspect.best_kernels, run.id)
    return Facts(run.name, version.step, base, config, steps, turns, names, best, adapter)


def _rebase(config: Path, base: str) -> None:
    """The name of the weights underneath that other machines know."""
    tree: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    tree["base_model_name_or_path"] = base
    config.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _move(source: Path, to: Path) -> None:
    for file in source.iterdir():
        shutil.move(file, to / file.name)
