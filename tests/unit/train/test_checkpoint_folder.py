import os
from pathlib import Path

import pytest

from kpipe.errors import TrainError
from kpipe.train.folder import OPTIMIZER_DIR, CheckpointFolder


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    made = CheckpointFolder(str(tmp_path), "run")
    made.root.mkdir()
    return made


def checkpoint(folder: CheckpointFolder, step: int) -> Path:
    path = folder.path(step)
    (path / OPTIMIZER_DIR).mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    (path / OPTIMIZER_DIR / "optimizer.safetensors").write_bytes(b"moments")
    return path


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(p.name for p in folder.root.iterdir())


def test_a_checkpoint_has_no_name_before_it_is_complete(folder: CheckpointFolder) -> None:
    draft = folder.begin(12)
    (draft / "trainer").mkdir()
    (draft / "trainer" / "optimizer.safetensors").write_bytes(b"x")
    assert not folder.path(12).exists()
    assert folder.publish(12) == folder.path(12)
    assert names(folder) == ["step-000012"]
    assert (folder.path(12) / "trainer" / "optimizer.safetensors").read_bytes() == b"x"


def test_a_draft_of_a_killed_trainer_is_not_continued(folder: CheckpointFolder) -> None:
    (folder.begin(1) / "half").write_bytes(b"")
    assert list(folder.begin(1).iterdir()) == []


def test_sweep_removes_the_orphan_after_the_last_commit_and_nothing_else(folder: CheckpointFolder) -> None:
    for step in (0, 3, 4):
        checkpoint(folder, step)
    folder.begin(4)
    (folder.root / ".removed-step-000001").mkdir()
    (folder.root / "logs").mkdir()
    (folder.root / "step-notes").mkdir()
    assert folder.sweep(3) == []
    assert names(folder) == ["logs", "step-000000", "step-000003", "step-notes"]


def test_sweep_sets_checkpoints_of_another_database_aside(folder: CheckpointFolder) -> None:
    for step in (0, 1, 2, 30):
        checkpoint(folder, step)
    (folder.root / "set-aside-1").mkdir()
    moved = folder.sweep(0)
    assert [p.name for p in moved] == ["step-000001", "step-000002", "step-000030"]
    assert {p.parent.name for p in moved} == {"set-aside-2"}
    assert all((p / "model.safetensors").read_bytes() == b"weights" for p in moved)
    assert names(folder) == ["set-aside-1", "set-aside-2", "step-000000"]


@pytest.mark.parametrize(
    ("every", "left"),
    [(10, [0, 10, 20, 21, 22, 23]), (7, [0, 7, 14, 20, 21, 22, 23]), (0, [0, 20, 21, 22, 23])],
)
def test_prune_keeps_the_newest_the_base_and_every_nth(
    folder: CheckpointFolder, every: int, left: list[int]
) -> None:
    steps = range(24)
    for step in steps:
        checkpoint(folder, step)
    folder.prune(steps, latest=23, optimizers=2, weights=4, every=every)
    kept = [s for s in steps if folder.path(s).exists()]
    assert kept == left
    assert [s for s in kept if (folder.path(s) / OPTIMIZER_DIR).exists()] == [22, 23]
    assert all((folder.path(s) / "model.safetensors").exists() for s in kept)
    assert names(folder) == [f"step-{s:06d}" for s in kept]


def test_prune_forgives_what_is_gone(folder: CheckpointFolder) -> None:
    checkpoint(folder, 2)
    folder.prune([0, 1, 2], latest=2, optimizers=1, weights=1, every=10)
    assert names(folder) == ["step-000002"]


def test_a_second_trainer_is_refused_and_the_lock_dies_with_its_holder(folder: CheckpointFolder) -> None:
    other = CheckpointFolder(str(folder.root.parent), "run")
    mine = rf"Another trainer \(process {os.getpid()}\)"
    with folder.locked(), pytest.raises(TrainError, match=mine), other.locked():
        pass
    with other.locked():
        pass
