"""`kpipe show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kpipe.cli.options import DEFAULT_DB, Db, Json

if TYPE_CHECKING:
    from collections.abc import Callable

    from kpipe.store.show import Page

EVERY_S = 2.0


class Watchable(TyperCommand):
    """A command whose `--watch` may stand without its number."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for i, word in enumerate(args):
            if word == "--watch" and not _is_number(args[i + 1 : i + 2]):
                args = [*args[: i + 1], str(EVERY_S), *args[i + 1 :]]
                break
        return super().parse_args(ctx, args)


def _is_number(words: list[str]) -> bool:
    return bool(words) and words[0].replace(".", "", 1).isdigit()


app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Watch = Annotated[
    float | None,
    typer.Option(
        metavar="[SECONDS]", help=f"Show it again every so many seconds ({EVERY_S:g}) until Ctrl-C."
    ),
]
Run = Annotated[str | None, typer.Option("--run", help="Name of a run; by default all of them.")]
Name = Annotated[str | None, typer.Argument(metavar="NAME", help="Name of a run; without it, all runs.")]
Id = Annotated[
    int | None,
    typer.Argument(metavar="ID", min=0, max=2**63 - 1, help="Its id; without one, the newest are listed."),
]


@app.command(cls=Watchable)
def run(name: Name = None, db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None) -> None:
    """All runs, or one: updates, outcomes, where its time went.

    Example: kpipe show run default --watch
    """
    from kpipe.store import show

    _show(db, show.run, name, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def group(
    id: Id = None, run: Run = None, db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None
) -> None:
    """A group and its trajectories.

    Example: kpipe show group 12
    """
    from kpipe.store import show

    _show(db, show.group, id, run, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def trajectory(
    id: Id = None, run: Run = None, db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None
) -> None:
    """A trajectory, turn by turn.

    Example: kpipe show trajectory 47 --json
    """
    from kpipe.store import show

    _show(db, show.one_trajectory, id, run, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def turn(
    id: Id = None, run: Run = None, db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None
) -> None:
    """A turn: suggestion, kernel, what it cost, its verdict and log, and which updates used it.

    Example: kpipe show turn 190
    """
    from kpipe.store import show

    _show(db, show.one_turn, id, run, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def queue(db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None) -> None:
    """Evaluations that run and wait.

    Example: kpipe show queue --watch 5
    """
    from kpipe.store import show

    _show(db, show.queue, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def workers(db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None) -> None:
    """Who works on this database, and when each was heard of last.

    Example: kpipe show workers
    """
    from kpipe.store import show

    _show(db, show.who, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def best(run: Run = None, db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None) -> None:
    """The fastest correct kernel of every problem.

    Example: kpipe show best --run default
    """
    from kpipe.store import show

    _show(db, show.best, run, as_json=as_json, watch=watch)


@app.command(cls=Watchable)
def cost(run: Run = None, db: Db = DEFAULT_DB, as_json: Json = False, watch: Watch = None) -> None:
    """What the coder cost, and what stored answers and verdicts saved.

    Example: kpipe show cost --json
    """
    from kpipe.store import show

    _show(db, show.cost, run, as_json=as_json, watch=watch)


def _show(db: str, page: Callable[..., Page], *args: object, as_json: bool, watch: float | None) -> None:
    from kpipe.cli.pages import show_once, watch_it
    from kpipe.errors import UsageError
    from kpipe.store.database import Database

    if watch is not None and watch <= 0:
        raise UsageError(f"--watch {watch:g} is no time to wait.", "Give a number of seconds above 0.")
    with Database.open(db) as database:
        if watch is None:
            show_once(database.read(page, *args), as_json)
        else:
            watch_it(lambda: database.read(page, *args), watch, as_json)
