"""What people train and analyse on elsewhere, as rows with named columns: turns, groups, pairs, views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import Any

import sqlalchemy as sa

from kpipe.domain.near import near
from kpipe.errors import StoreError
from kpipe.store import tokens, views
from kpipe.store.portable import BATCH, Field, Kind, Row, kind_of, normalised, stream
from kpipe.store.sql import Time

NAMED = ("turns", "groups", "sft", "preferences")
"""Data sets besides the views."""


@dataclass(frozen=True, slots=True)
class Choice:
    """`runs` None means all. A turn pays above `min_speedup`; a pair's rewards differ by `min_gap` or more."""

    runs: Sequence[int] | None = None
    min_speedup: float = 1.0
    min_gap: float = 0.0

    def values(self) -> dict[str, Any]:
        return {"every": self.runs is None, "runs": list(self.runs or ())}


@dataclass(frozen=True, slots=True)
class Dataset:
    fields: tuple[Field, ...]
    batches: Iterator[Sequence[Row]]


_MADE = """
    FROM turn u
    JOIN trajectory t ON t.id = u.trajectory_id
    JOIN rollout_group g ON g.id = t.group_id AND (:every OR g.run_id IN :runs)
    JOIN run r ON r.id = g.run_id
    JOIN problem p ON p.id = g.problem_id
    JOIN policy_version v ON v.id = u.policy_version_id
    JOIN blob prompt ON prompt.sha = u.prompt_sha
    LEFT JOIN blob kernel ON kernel.sha = u.kernel_sha
    LEFT JOIN evaluation e ON e.id = u.evaluation_id
"""

_TURNS = f"""
    SELECT u.id, r.name, g.ordinal, p.suite, p.level, p.name, p.split, t.member, u.ordinal, v.step, u.state,
           prompt.body, u.suggestion, kernel.body, u.outcome, u.reward, u.fault, e.speedup, e.speedup_low,
           e.speedup_high, e.time_ms, e.baseline_ms, e.device, e.harness, log.body, s.step, s."return",
           s.advantage, s.weight, s.drop_reason, k.sampling, k.finish_reason, u.created_at, u.settled_at,
           k.codec, k.data, k.prompt_len, k.completion_len
    {_MADE}
    JOIN tokens k ON k.turn_id = u.id
    LEFT JOIN blob log ON log.sha = e.log_sha
    LEFT JOIN train_sample s ON s.turn_id = u.id AND s.run_id = g.run_id
    ORDER BY u.id
"""

_TURN_FIELDS = (
    Field("turn_id", "integer"),
    Field("run", "text"),
    Field("group", "integer"),
    Field("suite", "text"),
    Field("level", "integer"),
    Field("problem", "text"),
    Field("split", "text"),
    Field("member", "integer"),
    Field("turn", "integer"),
    Field("policy_step", "integer"),
    Field("state", "text"),
    Field("prompt", "text"),
    Field("suggestion", "text"),
    Field("kernel", "text"),
    Field("outcome", "text"),
    Field("reward", "number"),
    Field("fault", "text"),
    Field("speedup", "number"),
    Field("speedup_low", "number"),
    Field("speedup_high", "number"),
    Field("time_ms", "number"),
    Field("baseline_ms", "number"),
    Field("device", "text"),
    Field("harness", "text"),
    Field("log", "text"),
    Field("train_step", "integer"),
    Field("return", "number"),
    Field("advantage", "number"),
    Field("weight", "number"),
    Field("drop_reason", "text"),
    Field("sampling", "json"),
    Field("finish_reason", "text"),
    Field("created_at", "time"),
    Field("settled_at", "time"),
)
_NUMBER_FIELDS = (
    Field("prompt_ids", "integers"),
    Field("completion_ids", "integers"),
    Field("logprobs", "float32s"),
)

_GROUPS = """
    SELECT g.id, r.name, g.ordinal, p.suite, p.level, p.name, p.split, reference.body, g.device, g.size,
           g.state, g.consumed_step, g.created_at, g.finished_at,
           u.id, t.member, u.ordinal, v.step, prompt.body, u.suggestion, kernel.body, u.outcome, u.reward,
           u.fault, e.speedup
    FROM rollout_group g
    JOIN run r ON r.id = g.run_id
    JOIN problem p ON p.id = g.problem_id
    JOIN blob reference ON reference.sha = p.reference_sha
    LEFT JOIN trajectory t ON t.group_id = g.id
    LEFT JOIN turn u ON u.trajectory_id = t.id
    LEFT JOIN policy_version v ON v.id = u.policy_version_id
    LEFT JOIN blob prompt ON prompt.sha = u.prompt_sha
    LEFT JOIN blob kernel ON kernel.sha = u.kernel_sha
    LEFT JOIN evaluation e ON e.id = u.evaluation_id
    WHERE :every OR g.run_id IN :runs
    ORDER BY g.id, t.member, u.ordinal
"""
_GROUP_FIELDS = (
    Field("group_id", "integer"),
    Field("run", "text"),
    Field("group", "integer"),
    Field("suite", "text"),
    Field("level", "integer"),
    Field("problem", "text"),
    Field("split", "text"),
    Field("reference", "text"),
    Field("device", "text"),
    Field("size", "integer"),
    Field("state", "text"),
    Field("consumed_step", "integer"),
    Field("created_at", "time"),
    Field("finished_at", "time"),
)
_MEMBER_FIELDS = (
    Field("turn_id", "integer"),
    Field("member", "integer"),
    Field("turn", "integer"),
    Field("policy_step", "integer"),
    Field("prompt", "text"),
    Field("suggestion", "text"),
    Field("kernel", "text"),
    Field("outcome", "text"),
    Field("reward", "number"),
    Field("fault", "text"),
    Field("speedup", "number"),
)

_SFT = f"""
    SELECT prompt, completion, run, problem, speedup, turn_id
    FROM (SELECT prompt.body AS prompt, u.suggestion AS completion, r.name AS run, p.name AS problem,
                 e.speedup, u.id AS turn_id,
                 row_number() OVER (PARTITION BY u.prompt_sha, u.suggestion
                                    ORDER BY e.speedup DESC, u.id) AS place
          {_MADE}
          WHERE u.outcome = 'correct' AND e.speedup > :min_speedup AND p.split = 'train') paid
    WHERE place = 1
    ORDER BY turn_id
"""  # noqa: S608 - no value in it
_SFT_FIELDS = (
    Field("prompt", "text"),
    Field("completion", "text"),
    Field("run", "text"),
    Field("problem", "text"),
    Field("speedup", "number"),
    Field("turn_id", "integer"),
)

_PREFERENCES = """
    WITH rewarded AS (
        SELECT u.id, u.ordinal, u.prompt_sha, u.suggestion, u.reward, t.group_id, r.name AS run,
               p.name AS problem
        FROM turn u
        JOIN trajectory t ON t.id = u.trajectory_id
        JOIN rollout_group g ON g.id = t.group_id AND (:every OR g.run_id IN :runs)
        JOIN run r ON r.id = g.run_id
        JOIN problem p ON p.id = g.problem_id AND p.split = 'train'
        WHERE u.reward IS NOT NULL)
    SELECT blob.body, chosen, rejected, run, problem, chosen_reward, rejected_reward, chosen_id, rejected_id
    FROM (SELECT good.prompt_sha, good.suggestion AS chosen, bad.suggestion AS rejected, good.run,
                 good.problem, good.reward AS chosen_reward, bad.reward AS rejected_reward,
                 good.id AS chosen_id, bad.id AS rejected_id,
                 row_number() OVER (PARTITION BY good.prompt_sha, good.suggestion, bad.suggestion
                                    ORDER BY good.reward - bad.reward DESC, good.id, bad.id) AS place
          FROM rewarded good
          JOIN rewarded bad ON bad.group_id = good.group_id AND bad.ordinal = good.ordinal
                           AND bad.prompt_sha = good.prompt_sha AND bad.suggestion <> good.suggestion
          WHERE good.reward > bad.reward AND good.reward - bad.reward >= :min_gap) pairs
    JOIN blob ON blob.sha = pairs.prompt_sha
    WHERE place = 1
    ORDER BY chosen_id, rejected_id
"""
_PREFERENCE_FIELDS = (
    Field("prompt", "text"),
    Field("chosen", "text"),
    Field("rejected", "text"),
    Field("run", "text"),
    Field("problem", "text"),
    Field("chosen_reward", "number"),
    Field("rejected_reward", "number"),
    Field("chosen_turn_id", "integer"),
    Field("rejected_turn_id", "integer"),
)


def dataset(conn: sa.Connection, what: str, choice: Choice) -> Dataset:
    """Rows in batches, in an order that does not change. Raises StoreError for a name that is neither
    one of NAMED nor a view.
    """
    make = {"turns": _turns, "groups": _groups, "sft": _sft, "preferences": _preferences}.get(what)
    return make(conn, choice) if make else _view(conn, what, choice)


def _turns(conn: sa.Connection, choice: Choice) -> Dataset:
    width = len(_TURN_FIELDS)
    numbers = (Field("codec", "text"), Field("data", "bytes"), Field("p", "integer"), Field("c", "integer"))
    batches = _run(conn, _TURNS, (*_TURN_FIELDS, *numbers), choice.values())
    decoded = ([(*row[:width], *tokens.decode(*row[width:])) for row in batch] for batch in batches)
    return Dataset((*_TURN_FIELDS, *_NUMBER_FIELDS), decoded)


def _groups(conn: sa.Connection, choice: Choice) -> Dataset:
    width = len(_GROUP_FIELDS)
    flat = chain.from_iterable(_run(conn, _GROUPS, (*_GROUP_FIELDS, *_MEMBER_FIELDS), choice.values()))
    names = [field.name for field in _MEMBER_FIELDS]

    def nested() -> Iterator[Row]:
        for _, members in groupby(flat, key=lambda row: row[0]):
            all_ = list(members)
            turns = [dict(zip(names, row[width:], strict=True)) for row in all_ if row[width] is not None]
            yield (*all_[0][:width], turns)

    rows = nested()
    batches = iter(lambda: list(islice(rows, BATCH)), [])
    return Dataset((*_GROUP_FIELDS, Field("turns", "records", _MEMBER_FIELDS)), batches)


def _sft(conn: sa.Connection, choice: Choice) -> Dataset:
    values = {**choice.values(), "min_speedup": choice.min_speedup}
    return Dataset(_SFT_FIELDS, _run(conn, _SFT, _SFT_FIELDS, values))


def _preferences(conn: sa.Connection, choice: Choice) -> Dataset:
    values = {**choice.values(), "min_gap": choice.min_gap}
    return Dataset(_PREFERENCE_FIELDS, _run(conn, _PREFERENCES, _PREFERENCE_FIELDS, values))


def _run(
    conn: sa.Connection, query: str, fields: Sequence[Field], values: dict[str, Any]
) -> Iterator[list[Row]]:
    types: dict[Kind, Any] = {"time": Time, "json": sa.JSON()}
    columns = [sa.column(f"c{i}", types.get(field.kind)) for i, field in enumerate(fields)]
    statement = sa.text(query).bindparams(sa.bindparam("runs", expanding=True), **values).columns(*columns)
    return normalised(stream(conn, statement), fields)


def _view(conn: sa.Connection, name: str, choice: Choice) -> Dataset:
    """A view's columns have the types that the database tells; those of SQLite's expressions are looked for."""
    inspector = sa.inspect(conn)
    known = sorted(view for view in inspector.get_view_names() if view.startswith(views.PREFIX))
    if name not in known:
        raise StoreError(
            f"There is nothing called {name!r} to export.{near(name, [*NAMED, *known])}",
            f"Choose store, {', '.join(NAMED)}, or one of {', '.join(known)}.",
        )
    columns = [sa.column(c["name"], c["type"]) for c in inspector.get_columns(name)]
    query = sa.select(*columns).select_from(sa.table(name))
    if choice.runs is not None:
        query = _of_runs(query, name, columns, choice.runs)
    kinds = {c.name: kind_of(c.type) for c in columns}
    found = _look_at(conn, query, [name for name, kind in kinds.items() if kind is None])
    fields = tuple(Field(c.name, kinds[c.name] or found[c.name]) for c in columns)
    order = [
        sa.collate(c, "C") if f.kind == "text" and conn.dialect.name == "postgresql" else c
        for c, f in zip(columns, fields, strict=True)
        if f.kind != "json"
    ]
    return Dataset(fields, normalised(stream(conn, query.order_by(*order)), fields))


def _of_runs(
    query: sa.Select[Any], name: str, columns: Sequence[sa.ColumnClause[Any]], runs: Sequence[int]
) -> sa.Select[Any]:
    for column in columns:
        if column.name == "run":
            names = sa.text("SELECT name FROM run WHERE id IN :runs").bindparams(
                sa.bindparam("runs", list(runs), expanding=True)
            )
            return query.where(column.in_(names.columns(sa.column("name", sa.Text)).scalar_subquery()))
    raise StoreError(f"The view {name} is not about runs.", "Leave --run away.")


def _look_at(conn: sa.Connection, query: sa.Select[Any], names: Sequence[str]) -> dict[str, Kind]:
    """Of which kind the values of these columns are, seen row by row."""
    seen: dict[str, set[type]] = {name: set() for name in names}
    if names:
        all_ = query.subquery()
        narrow = sa.select(*(all_.c[name] for name in names))
        for batch in stream(conn, narrow):
            for name, values in zip(names, zip(*batch, strict=True), strict=True):
                seen[name].update(map(type, values))
    return {name: _kind_of_values(types - {type(None)}) for name, types in seen.items()}


def _kind_of_values(types: set[type]) -> Kind:
    if types == {int}:
        return "integer"
    return "text" if str in types or not types else "number"
