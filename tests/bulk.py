"""A database that has been in use for long, made in seconds: the same SQL on both databases."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from kpipe.domain.problem import Problem
from kpipe.store import catalog, policies, runs, workers
from kpipe.store.database import Database
from kpipe.store.tokens import CODEC, encode

PROBLEMS = 20
TURNS, MEMBERS = 4, 4
GROUP = TURNS * MEMBERS
GROUPS_PER_STEP = 8
FRESH = 16
"""Complete groups that the trainer has not taken yet."""
WAITING = 100
RUNNING = 8
DEVICE = "cpu"
_NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :count) "
_AT = "'2026-01-01 00:00:00.000'"

# Two turns share an answer and a verdict. One evaluation in eight is wrong, one in fifty a hack.
_FILL = {
    "blobs": (
        "evaluations",
        "INSERT INTO blob (sha, body, created_at) {n} SELECT 'k' || i, 'a kernel', {at} FROM n",
    ),
    "versions": (
        "steps",
        "INSERT INTO policy_version (id, run_id, step, path, digest, created_at) {n} "
        "SELECT i + 2, :run, i + 1, '/none', 'none', {at} FROM n",
    ),
    "groups": (
        "groups",
        "INSERT INTO rollout_group (id, run_id, ordinal, problem_id, device, size, state, consumed_step, created_at, "
        "finished_at) {n} SELECT i + 1, :run, i, i % {problems} + 1, 'cpu', {members}, 'complete', "
        "CASE WHEN i < :groups - {fresh} THEN i / {per_step} + 1 END, {at}, {at} FROM n",
    ),
    "trajectories": (
        "trajectories",
        "INSERT INTO trajectory (id, group_id, member, state) {n} "
        "SELECT i + 1, i / {members} + 1, i % {members}, 'closed' FROM n",
    ),
    "calls": (
        "evaluations",
        "INSERT INTO coder_call (id, key_sha, model, request_sha, reply_sha, tokens_in, tokens_out, usd, seconds, "
        "attempts, created_at) {n} SELECT i + 1, 'c' || i, 'gpt', 'k0', 'k0', 10, 10, 0.01, 1.5, 1, {at} FROM n",
    ),
    "evaluations": (
        "evaluations",
        "INSERT INTO evaluation (id, problem_id, kernel_sha, harness, device, round, state, rank, attempt, failures, "
        "not_before, outcome, speedup, speedup_low, speedup_high, time_ms, baseline_ms, build_s, run_s, queued_at, "
        "finished_at) {n} SELECT i + 1, i / 8 % {problems} + 1, 'k' || i, '1', 'cpu', 0, 'done', 0, 0, 0, {at}, "
        "CASE WHEN i % 50 = 0 THEN 'hack' WHEN i % 8 = 0 THEN 'wrong_value' ELSE 'correct' END, "
        "1.0 + i % 97 / 50.0, 0.9, 3.0, 1.0, 2.0, 0.5, 0.5, {at}, {at} FROM n",
    ),
    "findings": (
        "findings",
        "INSERT INTO finding (id, evaluation_id, rule, severity, message) {n} "
        "SELECT i + 1, i * 50 + 1, 'calls-reference', 'hard', 'it calls Model' FROM n",
    ),
    "turns": (
        "turns",
        "INSERT INTO turn (id, trajectory_id, ordinal, state, policy_version_id, prompt_sha, prompt_template, "
        "suggestion, coder_call_id, kernel_sha, evaluation_id, outcome, reward, created_at, settled_at) {n} "
        "SELECT i + 1, i / {turns} + 1, i % {turns}, 'settled', CASE WHEN i < :trained THEN i / {per_step} / {group} ELSE :steps END + 1, 'k0', 't', "
        "'unroll the loop by ' || (i % 100), i / 2 + 1, 'k' || (i / 2), i / 2 + 1, "
        "CASE WHEN i / 2 % 50 = 0 THEN 'hack' WHEN i / 2 % 8 = 0 THEN 'wrong_value' ELSE 'correct' END, "
        "i % 7 - 1.0, {at}, {at} FROM n",
    ),
    "tokens": (
        "turns",
        "INSERT INTO tokens (turn_id, codec, data, prompt_len, completion_len, sampling, finish_reason) {n} "
        "SELECT i + 1, :codec, :data, :said, :said, '{{}}', 'stop' FROM n",
    ),
    "updates": (
        "steps",
        "INSERT INTO train_step (run_id, step, policy_in_id, policy_out_id, batch_hash, metrics, created_at) {n} "
        "SELECT :run, i + 1, i + 1, i + 2, 'h', '{{\"seconds\" : 1.5}}', {at} FROM n",
    ),
    "samples": (
        "trained",
        'INSERT INTO train_sample (run_id, turn_id, step, "return", advantage, weight, drop_reason) {n} '
        "SELECT :run, i + 1, i / {group} / {per_step} + 1, 1.0, CASE WHEN i % 16 > 0 THEN 0.5 END, "
        "CASE WHEN i % 16 > 0 THEN 1.0 END, CASE WHEN i % 16 = 0 THEN 'no_signal' END FROM n",
    ),
    "waiting blobs": (
        "waiting",
        "INSERT INTO blob (sha, body, created_at) {n} SELECT 'w' || i, 'a kernel', {at} FROM n",
    ),
    "waiting": (
        "waiting",
        "INSERT INTO evaluation (id, problem_id, kernel_sha, harness, device, round, state, rank, attempt, failures, "
        "not_before, queued_at) {n} SELECT :evaluations + i + 1, i % {problems} + 1, 'w' || i, '1', 'cpu', 0, "
        "'queued', 0, 0, 0, {at}, {at} FROM n",
    ),
    "running": (
        "running",
        "INSERT INTO evaluation (id, problem_id, kernel_sha, harness, device, round, state, rank, attempt, failures, "
        "not_before, worker_id, lease, lease_until, queued_at) {n} SELECT :evaluations + :waiting + i + 1, 1, "
        "'w' || i, '2', 'cpu', 0, 'running', 0, 0, 0, {at}, 1, 'lease', '2126-01-01 00:00:00.000', {at} FROM n",
    ),
}


def fill(db: Database, turns: int, token_bytes: int = 100) -> int:
    """Put a run of so many settled turns, and a queue, into an empty database; the run's id."""
    run_id = db.write(runs.create, "long", {}, 0, "0.1.0").id
    for i in range(PROBLEMS):
        db.write(catalog.add, Problem("bulk", 1 + i % 3, f"problem {i}", "train", f"class Model: ...  # {i}"))
    db.write(policies.add, run_id, 0, "/none", "none")
    db.write(workers.register, "evaluate", "host", 1, DEVICE)
    groups = turns // GROUP
    said = max(2, token_bytes // 12)  # three numbers of four bytes each, incompressible
    ids = [(j * 2654435761) % 2**31 for j in range(said)]
    counts: dict[str, Any] = {
        **{"turns": turns, "groups": groups, "trajectories": groups * MEMBERS, "evaluations": turns // 2},
        **{
            "trained": (groups - FRESH) * GROUP,
            "findings": turns // 100,
            "waiting": WAITING,
            "running": RUNNING,
        },
        "steps": -(-(groups - FRESH) // GROUPS_PER_STEP),
    }
    values = {"run": run_id, "codec": CODEC, "said": said, "data": encode(ids, ids, [i / 3e9 for i in ids])}
    words = {"n": _NUMBERS, "at": _AT, "problems": PROBLEMS, "turns": TURNS, "members": MEMBERS}
    words |= {"group": GROUP, "per_step": GROUPS_PER_STEP, "fresh": FRESH}
    for size, statement in _FILL.values():
        text = sa.text(statement.format(**words))
        given = {**counts, **values, "count": counts[size]}
        used = {name: given[name] for name in text.compile().params}
        db.write(lambda conn, text=text, used=used: conn.execute(text, used))
    db.write(_settle_down)
    return run_id


def _settle_down(conn: sa.Connection) -> None:
    """Ids go on after the last one; the planner knows how many rows there are, as after a day of use."""
    if conn.dialect.name == "postgresql":
        for table in (
            "policy_version",
            "rollout_group",
            "trajectory",
            "coder_call",
            "evaluation",
            "finding",
            "turn",
        ):
            last = f"(SELECT max(id) FROM {table})"
            conn.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), {last})")
        conn.exec_driver_sql("ANALYZE")
