"""The checks try the real thing: here they are given machines on which it fails."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from kpipe.cli import checks
from kpipe.store.database import Database

NAMES = [
    *("python", "torch", "compiler", "ninja", "nvcc", "gpu", "database"),
    *("postgres", "api key", "sandbox", "disk", "memory", "cores"),
]
KEY = "sk-doctor-0123456789"


def doctor(*arguments: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kpipe", "doctor", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "200", **env},
    )


def tool(folder: Path, name: str, script: str) -> None:
    """A program on PATH that does what the script says."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what the test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_on_a_machine_that_has_all(tmp_path: Path) -> None:
    done = doctor("--json", cwd=tmp_path, OPENAI_API_KEY=KEY)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["ready"] is True
    found = {check["name"]: check for check in report["checks"]}
    assert list(found) == NAMES
    for name in ("python", "torch", "compiler", "ninja", "database", "disk", "memory"):
        assert found[name]["state"] == "ok", found[name]
    assert found["database"]["detail"].startswith("kpipe.db")
    assert found["api key"]["state"] == "ok"
    assert KEY not in done.stdout + done.stderr
    assert not list(tmp_path.iterdir())


def test_without_a_compiler(tmp_path: Path) -> None:
    done = doctor(cwd=tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "apt install g++" in done.stdout
    assert "cannot work here yet: compiler." in done.stdout
    assert "Traceback" not in done.stderr


def test_every_line_has_its_state_and_what_is_missing_its_fix(tmp_path: Path) -> None:
    (tmp_path / "kpipe.db").write_text("these are my notes\n" * 100)
    done = doctor(cwd=tmp_path, OPENAI_API_KEY="")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    for name in NAMES:
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        assert any(f" {state} " in line for state in ("ok", "missing", "optional"))
    assert "kpipe.db is not a kpipe database" in done.stdout
    assert "-> export OPENAI_API_KEY=..." in done.stdout
    assert (tmp_path / "kpipe.db").read_text().startswith("these are my notes")


def test_it_loads_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from kpipe.cli.checks import examine; examine('sqlite:///x.db'); "
        "print('torch' in sys.modules, 'sqlalchemy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True"


def test_gpu_loads_it(tmp_path: Path) -> None:
    found = checks.torch(load=True)
    assert found.state == "ok"
    assert "GPU" in found.detail or "NVIDIA" in found.detail


@pytest.mark.parametrize(
    ("script", "words", "fix"),
    [
        ("echo 'hello.cpp:1:10: fatal error: cstdio: No such file' >&2; exit 1", "cstdio", "apt install g++"),
        ("exit 0", "does not run", "apt install g++"),
        ('case "$*" in *--version*) echo 9;; *) kill -9 $$;; esac', "no message", "apt install g++"),
    ],
)
def test_a_compiler_that_does_not_work(script: str, words: str, fix: str, bare: Path) -> None:
    tool(bare, "g++", script)
    found = checks.compiler()
    assert found.state == "missing"
    assert words in found.detail
    assert fix in found.fix


def test_a_compiler_without_pythons_headers(bare: Path) -> None:
    real = "/usr/bin/g++"
    refuse = "grep -q Python.h \"$4\" && { echo 'x.cpp:1: fatal error: Python.h: No such file' >&2; exit 1; }"
    tool(bare, "g++", f'PATH=/usr/bin:/bin\ncase "$1" in --version) ;; *) {refuse} ;; esac\nexec {real} "$@"')
    found = checks.compiler()
    assert found.state == "missing"
    assert "Python.h" in found.detail
    assert found.fix == "apt install python3-dev"


def test_ninja_of_the_environment_counts(bare: Path) -> None:
    assert checks.ninja().state == "ok"
    tool(bare, "ninja", "exit 3")
    assert checks.ninja().fix == "pip install ninja"


def test_nvcc_and_gpu(bare: Path) -> None:
    tool(bare, "nvcc", "echo 'Cuda compilation tools, release 13.0, V13.0.88'")
    assert checks.nvcc().detail.startswith("CUDA 13.0")
    assert checks.graphics().state == "optional"
    tool(bare, "nvidia-smi", "echo 'NVIDIA H200, 143771 MiB, 580.1'")
    assert checks.graphics() == checks.Finding("gpu", "ok", "NVIDIA H200, 143771 MiB, 580.1")
    tool(bare, "nvidia-smi", "echo 'Failed to initialize NVML' ; exit 9")
    assert checks.graphics().fix == "nvidia-smi"


def test_states_of_a_database(tmp_path: Path) -> None:
    path = tmp_path / "kpipe.db"
    url = f"sqlite:///{path}"
    assert "not there yet" in checks.database(url).detail
    assert not path.exists()
    Database.open(url, create=True).close()
    assert checks.database(url).state == "ok"
    with sqlite3.connect(path) as db:
        db.execute("UPDATE alembic_version SET version_num = '9999_of_the_future'")
    newer = checks.database(url)
    assert newer.state == "missing"
    assert "newer" in newer.detail
    assert newer.fix
    path.unlink()
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE customers (id INTEGER)")
    assert "another program" in checks.database(url).detail + checks.database(url).fix
    for wrong in (f"sqlite:///{tmp_path}/no/such/place/kpipe.db", "sqlite://", "mysql://host/x", "kpipe.db"):
        assert checks.database(wrong).state == "missing", wrong


@pytest.mark.postgres
def test_states_of_postgres(postgres: PostgresServer) -> None:
    url = postgres.url("kpipe_tests")
    assert checks.database(url).state == "ok"
    assert checks.postgres(url).state == "ok"
    assert checks.postgres(postgres.url("postgres")).detail.startswith("reachable: no tables yet")
    missing = checks.postgres(postgres.url("nobody_made_this"))
    assert missing.state == "missing"
    assert missing.fix


def test_postgres_that_is_not_there() -> None:
    found = checks.postgres("postgresql://me:geheim@127.0.0.1:1/kpipe")
    assert found.state == "missing"
    assert found.fix
    assert "geheim" not in found.detail + found.fix
    assert checks.postgres("sqlite:///kpipe.db").state == "optional"


def test_api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " ")
    assert checks.api_key().state == "optional"
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    assert checks.api_key().state == "ok"
    assert KEY not in repr(checks.api_key())
    monkeypatch.setenv("KPIPE_CODER__API_KEY_ENV", "MY_KEY")
    assert "MY_KEY is not set" in checks.api_key().detail
    monkeypatch.setenv("KPIPE_CODER__API_KEY_ENV", "")
    assert checks.api_key().state == "ok"


def test_sandbox(bare: Path) -> None:
    assert "no user namespaces, no bubblewrap" in checks.sandbox().detail
    tool(bare, "bwrap", "exit 0")
    assert checks.sandbox().detail.endswith("bubblewrap")
    assert "no bubblewrap" not in checks.sandbox().detail


def test_room(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "not" / "yet"))
    assert checks.disk().state == "ok"
    monkeypatch.setattr(checks, "NEEDED_DISK_GIB", 10**9)
    monkeypatch.setattr(checks, "NEEDED_MEMORY_GIB", 10**9)
    for found in (checks.disk(), checks.memory()):
        assert found.state == "missing"
        assert found.fix


def test_cores() -> None:
    usable = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(usable)})
        assert checks.cores().state == "optional"
    finally:
        os.sched_setaffinity(0, usable)
    assert checks.cores().detail == f"{len(usable)} usable"
