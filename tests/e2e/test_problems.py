"""`kpipe problems`, as typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from sample_problem import GOOD


def kpipe(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kpipe", "problems", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )


def test_add_list_show(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "relu.py").write_text(GOOD)
    assert "1 problem added to suite 'mine'" in kpipe("add", "mine", cwd=tmp_path).stdout
    assert (
        "0 problems added to suite 'mine', 1 were there already" in kpipe("add", "mine", cwd=tmp_path).stdout
    )
    listed = json.loads(kpipe("list", "--json", cwd=tmp_path).stdout)
    assert {"suite": "mine", "level": 1, "name": "relu", "split": "train", "lines": 12} in listed
    assert kpipe("show", "relu", cwd=tmp_path).stdout.strip() == GOOD.strip()


def test_unknown_name_is_met_with_near_ones(tmp_path: Path) -> None:
    done = kpipe("show", "gleu", cwd=tmp_path)
    assert done.returncode == 2
    assert "gelu" in done.stderr


def test_one_bad_file_adds_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "1.py").write_text(GOOD)
    (tmp_path / "mine" / "2.py").write_text("class Model: pass")
    done = kpipe("add", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "2.py" in done.stderr
    assert not (tmp_path / "kpipe.db").exists()
