"""The tables. Every change here needs a migration: `kpipe db check` compares the two.

Rules that the database itself can keep are constraints, so that no bug of ours breaks them quietly.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    UniqueConstraint,
    text,
)

from kpipe.store.sql import Text, Time, now

ID = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData(
    naming_convention={
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _id() -> Column[int]:
    return Column("id", ID, primary_key=True)


def _ref(table: str, name: str = "", *, null: bool = False) -> Column[int]:
    return Column(name or f"{table}_id", ID, ForeignKey(f"{table}.id"), nullable=null)


def _text_in(name: str, *, null: bool = False) -> Column[str]:
    """Text that lives in `blob`, once."""
    return Column(name, Text, ForeignKey("blob.sha"), nullable=null)


def _must(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _at(name: str = "created_at") -> Column[Any]:
    return Column(name, Time, nullable=False, default=now())


def _partial(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


blob = Table("blob", metadata, Column("sha", Text, primary_key=True), _must("body", Text), _at())

problem = Table(
    "problem",
    metadata,
    _id(),
    _must("suite", Text),
    _must("level", Integer),
    _must("name", Text),
    _must("split", Text),
    _text_in("reference_sha"),
    UniqueConstraint("suite", "name", "reference_sha"),
    CheckConstraint("split IN ('train', 'heldout')", name="split"),
)

run = Table(
    "run",
    metadata,
    _id(),
    _must("name", Text),
    _must("config", JSON),
    _must("seed", BigInteger),
    _must("code_version", Text),
    _at(),
    UniqueConstraint("name"),
)

policy_version = Table(
    "policy_version",
    metadata,
    _id(),
    _ref("run"),
    _must("step", Integer),
    _must("path", Text),
    _must("digest", Text),
    _at(),
    UniqueConstraint("run_id", "step"),
)

rollout_group = Table(
    "rollout_group",
    metadata,
    _id(),
    _ref("run"),
    _must("ordinal", Integer),
    _ref("problem"),
    _must("device", Text),
    _must("size", Integer),
    _must("state", Text),
    Column("lease", Text),
    Column("lease_until", Time),
    Column("consumed_step", Integer),  # update of its own run that trained it, or left it out as stale
    _at(),
    Column("finished_at", Time),
    UniqueConstraint("run_id", "ordinal"),
    CheckConstraint("state IN ('open', 'complete', 'failed')", name="state"),
    CheckConstraint("(state = 'open') = (lease IS NOT NULL)", name="open_is_leased"),
    CheckConstraint("(lease IS NULL) = (lease_until IS NULL)", name="lease_ends"),
    CheckConstraint("consumed_step IS NULL OR state = 'complete'", name="consumed_is_complete"),
    _partial("ix_rollout_group_open", "run_id", "lease_until", where="state = 'open'"),
    _partial(
        "ix_rollout_group_fresh", "run_id", "ordinal", where="state = 'complete' AND consumed_step IS NULL"
    ),
)

trajectory = Table(
    "trajectory",
    metadata,
    _id(),
    _ref("rollout_group", "group_id"),
    _must("member", Integer),
    _must("state", Text),
    UniqueConstraint("group_id", "member"),
    CheckConstraint("state IN ('open', 'closed')", name="state"),
)

turn = Table(
    "turn",
    metadata,
    _id(),
    _ref("trajectory"),
    _must("ordinal", Integer),
    _must("state", Text),
    _ref("policy_version"),
    _text_in("prompt_sha"),
    _must("prompt_template", Text),
    _must("suggestion", Text),
    _ref("coder_call", null=True),
    _text_in("kernel_sha", null=True),
    _ref("evaluation", null=True),
    Column("outcome", Text),
    Column("reward", Double),
    Column("fault", Text),
    _at(),
    Column("settled_at", Time),
    UniqueConstraint("trajectory_id", "ordinal"),
    CheckConstraint("state IN ('suggested', 'evaluating', 'settled')", name="state"),
    CheckConstraint("state <> 'evaluating' OR evaluation_id IS NOT NULL", name="evaluating_has_job"),
    CheckConstraint("(state = 'settled') = (settled_at IS NOT NULL)", name="settled_at"),
    CheckConstraint(
        "(state = 'settled') = (reward IS NOT NULL OR fault IS NOT NULL)", name="settled_has_result"
    ),
    CheckConstraint("reward IS NULL OR fault IS NULL", name="reward_or_fault"),
    CheckConstraint("(reward IS NULL) = (outcome IS NULL)", name="reward_has_outcome"),
    Index("ix_turn_evaluation_id", "evaluation_id"),
    Index("ix_turn_coder_call_id", "coder_call_id"),
)

tokens = Table(
    "tokens",
    metadata,
    Column("turn_id", ID, ForeignKey("turn.id"), primary_key=True, autoincrement=False),
    _must("codec", Text),
    _must("data", LargeBinary),
    _must("prompt_len", Integer),
    _must("completion_len", Integer),
    _must("sampling", JSON),
    _must("finish_reason", Text),
)

coder_call = Table(
    "coder_call",
    metadata,
    _id(),
    _must("key_sha", Text),
    _must("model", Text),
    _text_in("request_sha"),
    _text_in("reply_sha", null=True),
    Column("error", Text),
    _must("tokens_in", Integer),
    _must("tokens_out", Integer),
    _must("usd", Double),
    _must("seconds", Double),
    _must("attempts", Integer),
    _at(),
    UniqueConstraint("key_sha"),
)

turn_sample = Table(  # what the coder made of one suggestion, where it is asked more than once
    "turn_sample",
    metadata,
    _ref("turn"),
    _must("sample", Integer),
    _ref("coder_call", null=True),
    _text_in("kernel_sha", null=True),
    _ref("evaluation", null=True),
    Column("outcome", Text),
    Column("reward", Double),
    Column("fault", Text),
    _must("chosen", Integer),  # 1 for the one that the turn itself names
    PrimaryKeyConstraint("turn_id", "sample"),
    CheckConstraint("chosen IN (0, 1)", name="chosen"),
    CheckConstraint("reward IS NULL OR fault IS NULL", name="reward_or_fault"),
    CheckConstraint("(reward IS NULL) = (outcome IS NULL)", name="reward_has_outcome"),
    Index("ix_turn_sample_evaluation_id", "evaluation_id"),
    Index("ix_turn_sample_coder_call_id", "coder_call_id"),
)

coder_payment = Table(  # what a run itself paid for a request, and what one on its way may cost
    "coder_payment",
    metadata,
    _ref("run"),
    _must("key_sha", Text),
    _must("paid_usd", Double),
    _must("reserved_usd", Double),
    PrimaryKeyConstraint("run_id", "key_sha"),
    _partial("ix_coder_payment_reserved", "key_sha", where="reserved_usd > 0"),
)

worker = Table(
    "worker",
    metadata,
    _id(),
    _must("stage", Text),
    _must("host", Text),
    _must("pid", Integer),
    _must("device", Text),
    _at("started_at"),
    _at("seen_at"),
    _must("status", JSON),
)

evaluation = Table(
    "evaluation",
    metadata,
    _id(),
    _ref("problem"),
    _text_in("kernel_sha"),
    _must("harness", Text),
    _must("device", Text),
    _must("round", Integer),
    _must("state", Text),
    _must("rank", Integer),  # lower is claimed first
    _must("attempt", Integer),  # leases that ran out: the worker died or stalled
    _must("failures", Integer),  # times given back: the machine failed
    _at("not_before"),
    _ref("worker", null=True),
    Column("lease", Text),
    Column("lease_until", Time),
    Column("outcome", Text),
    Column("time_ms", Double),
    Column("baseline_ms", Double),
    Column("speedup", Double),
    Column("speedup_low", Double),
    Column("speedup_high", Double),
    Column("build_s", Double),
    Column("run_s", Double),
    Column("detail", JSON),
    _text_in("log_sha", null=True),
    _at("queued_at"),
    Column("finished_at", Time),
    UniqueConstraint("problem_id", "kernel_sha", "harness", "device", "round"),
    CheckConstraint("state IN ('queued', 'running', 'done', 'failed')", name="state"),
    CheckConstraint("(state = 'running') = (lease IS NOT NULL)", name="running_is_leased"),
    CheckConstraint("(lease IS NULL) = (lease_until IS NULL)", name="lease_ends"),
    CheckConstraint("(state IN ('done', 'failed')) = (outcome IS NOT NULL)", name="finished_has_outcome"),
    CheckConstraint(
        "(state = 'failed') = (outcome IS NOT NULL AND outcome = 'infra')", name="failed_is_infra"
    ),
    _partial("ix_evaluation_claim", "device", "rank", "id", where="state = 'queued'"),
    _partial("ix_evaluation_lease", "lease_until", where="state = 'running'"),
)

finding = Table(
    "finding",
    metadata,
    _id(),
    _ref("evaluation"),
    _must("rule", Text),
    _must("severity", Text),
    Column("line", Integer),
    _must("message", Text),
    Index("ix_finding_evaluation_id", "evaluation_id"),
)

baseline = Table(
    "baseline",
    metadata,
    _ref("problem"),
    _must("device", Text),
    _must("harness", Text),
    _must("mode", Text),
    _must("time_ms", Double),  # mean of the `n` evaluations that timed the reference
    _must("spread_ms", Double),  # mean absolute distance from the mean so far
    _must("n", Integer),
    _at("measured_at"),
    PrimaryKeyConstraint("problem_id", "device", "harness", "mode"),
)

train_step = Table(
    "train_step",
    metadata,
    _ref("run"),
    _must("step", Integer),
    _ref("policy_version", "policy_in_id"),
    _ref("policy_version", "policy_out_id"),
    _must("batch_hash", Text),
    _must("metrics", JSON),
    _at(),
    PrimaryKeyConstraint("run_id", "step"),
)

train_sample = Table(
    "train_sample",
    metadata,
    _ref("run"),
    _ref("turn"),
    _must("step", Integer),
    Column("return", Double),
    Column("advantage", Double),
    Column("weight", Double),
    Column("drop_reason", Text),
    PrimaryKeyConstraint("run_id", "turn_id"),
    Index("ix_train_sample_step", "run_id", "step"),
)

event = Table(
    "event",
    metadata,
    _id(),
    _at("at"),
    _must("kind", Text),
    _must("subject", Text),
    Column("subject_id", ID),
    _must("actor", Text),
    _must("detail", JSON),
)
