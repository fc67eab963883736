"""`kpipe run` and the three stages that it keeps alive."""

from __future__ import annotations

import typer

from kpipe.cli.options import DEFAULT_DB, ConfigFile, Db, Preset, RunName, Set


def run(
    name: RunName = "default",
    config: ConfigFile = None,
    preset: Preset = None,
    set_: Set = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Collect, evaluate and train on this machine until the last update, with live progress and a summary.

    Without arguments: a tiny built-in policy, an offline coder, built-in problems, two CPU cores.
    The same command in the same directory resumes. Ctrl-C once drains, twice stops.

    Example: kpipe run --set train.max_steps=10
    """
    from kpipe.cli.console import console as open_console
    from kpipe.config import load
    from kpipe.run.progress import Progress
    from kpipe.run.report import options, print_report
    from kpipe.run.setup import finished_step, prepare
    from kpipe.run.supervisor import Supervisor
    from kpipe.store.database import Database

    console = open_console()
    loaded = load(preset=preset, file=config, overrides=set_ or ())
    database = Database.open(db, create=True)
    try:
        prepared = prepare(database, name, loaded)
        step = finished_step(database, prepared.run)
        if step >= prepared.config.train.max_steps:
            console.print(f"Run {name!r} is finished: all {step} updates are done. Its summary:")
            print_report(console, database, db, prepared.run, prepared.config)
            console.print(
                f"  kpipe run{options(name, db)} --set train.max_steps={step * 2}  # go on from here",
                highlight=False,
                soft_wrap=True,
            )
            return
        if prepared.resumed:
            console.print(f"Resuming run {name!r} after update {step}.")
        with Progress(console, database, prepared.run, prepared.config) as progress:
            finished = Supervisor(database, db, prepared, progress.tick).run_to_end()
        print_report(console, database, db, prepared.run, prepared.config)
        if not finished:
            console.print("Stopped on request; everything is stored. The same command resumes.")
            raise typer.Exit(130)
    finally:
        database.close()


def collect(
    name: RunName = "default",
    config: ConfigFile = None,
    preset: Preset = None,
    set_: Set = None,
    db: Db = DEFAULT_DB,
) -> None:
    """Stage 1: let the policy suggest and the coder implement, until the run's last update is trained.

    Creates database and run when they are not there. SIGTERM or Ctrl-C drains.

    Example: kpipe collect --run first --config examples/qwen2-0.5b-kernelbench.toml
    """
    from kpipe.collect import collector
    from kpipe.run.children import cores_from_environment, die_with_supervisor

    die_with_supervisor()
    _log_to_stderr()
    _prepare(name, config, preset, set_, db)
    collector.main(db, name, cpus=cores_from_environment())


def evaluate(name: RunName = "default", db: Db = DEFAULT_DB) -> None:
    """Stage 2: build, check and time queued kernels until stopped. SIGTERM or Ctrl-C drains.

    Example: kpipe evaluate --db postgresql://kpipe@dbhost/kpipe
    """
    from kpipe.evaluate import worker
    from kpipe.run.children import die_with_supervisor

    die_with_supervisor()
    _log_to_stderr()
    worker.main(db, run_name=name)


def train(name: RunName = "default", db: Db = DEFAULT_DB) -> None:
    """Stage 3: turn complete groups into GRPO updates until train.max_steps are committed.

    Example: kpipe train --run first
    """
    import os

    from kpipe.run.children import cores_from_environment, die_with_supervisor
    from kpipe.train import trainer

    die_with_supervisor()
    _log_to_stderr()
    if cores := cores_from_environment():
        os.sched_setaffinity(0, cores)
    trainer.main(db, name)


def _prepare(name: str, config: ConfigFile, preset: str | None, set_: list[str] | None, db: str) -> None:
    from kpipe.config import load
    from kpipe.run.setup import prepare
    from kpipe.store.database import Database

    loaded = load(preset=preset, file=config, overrides=set_ or ())
    database = Database.open(db, create=True)
    try:
        prepare(database, name, loaded)
    finally:
        database.close()


def _log_to_stderr() -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname).1s %(name)s: %(message)s")
    for noisy in ("httpx2", "openai", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
