"""What is in a checkpoint, and whether it is still what was committed.

A checkpoint is a transformers directory (safetensors weights in float32, configuration, tokenizer), or a
peft one with LoRA, with two additions: `trainer_state.json`, and `trainer/optimizer.safetensors` while the checkpoint is recent.
The digest that the store keeps covers the former, which holds the digest of the latter. Nothing is
pickled. There is no random state to keep: everything random is derived from the run's seed and the step.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from kpipe.config import TrainConfig
from kpipe.errors import TrainError
from kpipe.policy import lora
from kpipe.policy.checkpoint import read_model
from kpipe.policy.files import checkpoint_files, digest
from kpipe.store.records import PolicyVersion
from kpipe.train.folder import OPTIMIZER_DIR
from kpipe.train.learner import Learner

STATE_FILE = "trainer_state.json"
OPTIMIZER_FILE = f"{OPTIMIZER_DIR}/optimizer.safetensors"

# What save_pretrained() writes anew; every other file of a checkpoint is the tokenizer's.
_OF_THE_MODEL = {
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    lora.CONFIG,
    STATE_FILE,
}


@dataclass(frozen=True, slots=True)
class TrainerState:
    """`step` counts committed updates, this one included."""

    step: int
    seed: int
    kpipe: str
    torch: str
    optimizer_sha256: str = ""


def write(path: Path, learner: Learner, tokenizer_from: Path, state: TrainerState) -> None:
    """Fill the empty directory `path`; the tokenizer is copied byte by byte.

    Raises OSError and SafetensorError when the disk does not take it.
    """
    write_model(path, learner, tokenizer_from)
    (path / OPTIMIZER_DIR).mkdir()
    save_file(_optimizer_tensors(learner), path / OPTIMIZER_FILE)
    complete = replace(state, optimizer_sha256=_sha256(path / OPTIMIZER_FILE))
    (path / STATE_FILE).write_text(json.dumps(asdict(complete), indent=2) + "\n", encoding="utf-8")


def write_model(path: Path, learner: Learner, tokenizer_from: Path) -> None:
    """What a sampler needs of a checkpoint: weights or adapter, and the tokenizer."""
    if lora.is_adapted(learner.model):
        lora.save(learner.model, path)
    else:
        learner.model.save_pretrained(path)
    for file in checkpoint_files(tokenizer_from):
        if file.suffix != ".safetensors" and file.name not in _OF_THE_MODEL:
            shutil.copyfile(file, path / file.name)


def verify(version: PolicyVersion, versions: Sequence[PolicyVersion]) -> None:
    """Raise TrainError when the checkpoint of `version` is not what was committed.

    It names the newest of the other `versions` that still is.
    """
    if found := damage(version):
        raise _damaged(version, versions, found)


def verify_weights(version: PolicyVersion, versions: Sequence[PolicyVersion]) -> None:
    """The same for who needs no optimizer state. Raises TrainError."""
    if found := weights_damage(version):
        raise _damaged(version, versions, found)


def _damaged(version: PolicyVersion, versions: Sequence[PolicyVersion], found: str) -> TrainError:
    earlier = sorted((v for v in versions if v.step < version.step), key=lambda v: -v.step)
    intact = next((v for v in earlier if not weights_damage(v)), None)
    fix = "Restore that directory from a backup"
    if intact:
        fix += (
            f", or start a new run from the newest checkpoint that is intact: kpipe run --run NAME"
            f" --set policy.kind=local --set policy.model={intact.path}"
        )
    return TrainError(
        f"The checkpoint of update {version.step}, {version.path}, is damaged: {found}.", f"{fix}."
    )


def resume(version: PolicyVersion, versions: Sequence[PolicyVersion], cfg: TrainConfig) -> Learner:
    """The learner as it was after update `version.step`; checked before it is loaded. Raises KpipeError."""
    base = next(v for v in versions if v.step == 0)
    verify(version, versions)
    if cfg.lora_rank or (cfg.kl_beta > 0 and not cfg.reference):
        verify(base, versions)
    learner = Learner.load(Path(version.path), Path(base.path), cfg)
    if version.step > 0:
        restore_optimizer(learner, Path(version.path))
    return learner


def stored_parameters(path: Path) -> dict[str, Tensor]:
    """What `Learner.trained` was when the checkpoint `path` was written. Raises PolicyError."""
    if lora.is_adapter(path):
        return lora.stored_tensors(path)
    return dict(read_model(path, "float32").named_parameters())


def restore_optimizer(learner: Learner, path: Path) -> None:
    """Give the optimizer the state that `write` saved in the checkpoint `path`. Raises TrainError."""
    tensors = load_file(path / OPTIMIZER_FILE)
    parameters = dict(learner.model.named_parameters())
    for name, tensor in tensors.items():
        owner, _, key = name.rpartition("/")
        parameter = parameters.get(owner)
        if parameter is None or (tensor.dim() and tensor.shape != parameter.shape):
            raise TrainError(
                f"The optimizer state in {path} belongs to a model of another architecture ({owner}).",
                "Put back the checkpoint that belongs to this run, or start a new run with --run NAME.",
            )
        # The step counts stay on the CPU, as AdamW keeps them.
        learner.optimizer.state[parameter][key] = tensor.to(learner.device) if tensor.dim() else tensor


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.detach().cpu().contiguous()
        for name, parameter in learner.model.named_parameters()
        for key, value in learner.optimizer.state.get(parameter, {}).items()
    }


def damage(version: PolicyVersion) -> str | None:
    """What is wrong with a checkpoint to go on from, or None."""
    if found := weights_damage(version):
        return found
    if version.step == 0:
        return None
    path = Path(version.path)
    for name in (STATE_FILE, OPTIMIZER_FILE):
        if not (path / name).is_file():
            return f"{name} is missing"
    state: dict[str, Any] = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    if _sha256(path / OPTIMIZER_FILE) != state["optimizer_sha256"]:
        return f"{OPTIMIZER_FILE} is not the file that was written"
    return None


def weights_damage(version: PolicyVersion) -> str | None:
    """What is wrong with the weights of a checkpoint, or None."""
    path = Path(version.path)
    if not path.is_dir() or not checkpoint_files(path):
        return "there is nothing"
    try:
        return None if digest(path) == version.digest else "its files are not those that were committed"
    except OSError as error:
        return f"a file cannot be read ({error.strerror})"


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
