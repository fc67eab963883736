"""The first schema: trajectories, evaluations and updates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_initial"
down_revision = None
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "blob",
        sa.Column("sha", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("sha", name="pk_blob"),
    )
    op.create_table(
        "event",
        sa.Column("id", ID, nullable=False),
        sa.Column("at", TIME, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("subject_id", ID, nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_event"),
    )
    op.create_table(
        "run",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("code_version", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_run"),
        sa.UniqueConstraint("name", name="uq_run_name"),
    )
    op.create_table(
        "worker",
        sa.Column("id", ID, nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("seen_at", TIME, nullable=False),
        sa.Column("status", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_worker"),
    )
    op.create_table(
        "coder_call",
        sa.Column("id", ID, nullable=False),
        sa.Column("key_sha", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("request_sha", sa.Text(), nullable=False),
        sa.Column("reply_sha", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("usd", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["reply_sha"], ["blob.sha"], name="fk_coder_call_reply_sha"),
        sa.ForeignKeyConstraint(["request_sha"], ["blob.sha"], name="fk_coder_call_request_sha"),
        sa.PrimaryKeyConstraint("id", name="pk_coder_call"),
        sa.UniqueConstraint("key_sha", name="uq_coder_call_key_sha"),
    )
    op.create_table(
        "policy_version",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_policy_version_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_policy_version"),
        sa.UniqueConstraint("run_id", "step", name="uq_policy_version_run_id_step"),
    )
    op.create_table(
        "problem",
        sa.Column("id", ID, nullable=False),
        sa.Column("suite", sa.Text(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("split", sa.Text(), nullable=False),
        sa.Column("reference_sha", sa.Text(), nullable=False),
        sa.CheckConstraint("split IN ('train', 'heldout')", name=op.f("ck_problem_split")),
        sa.ForeignKeyConstraint(["reference_sha"], ["blob.sha"], name="fk_problem_reference_sha"),
        sa.PrimaryKeyConstraint("id", name="pk_problem"),
        sa.UniqueConstraint("suite", "name", "reference_sha", name="uq_problem_suite_name_reference_sha"),
    )
    op.create_table(
        "baseline",
        sa.Column("problem_id", ID, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("harness", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=False),
        sa.Column("time_ms", sa.Double(), nullable=False),
        sa.Column("spread_ms", sa.Double(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("measured_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_baseline_problem_id"),
        sa.PrimaryKeyConstraint("problem_id", "device", "harness", "mode", name="pk_baseline"),
    )
    op.create_table(
        "evaluation",
        sa.Column("id", ID, nullable=False),
        sa.Column("problem_id", ID, nullable=False),
        sa.Column("kernel_sha", sa.Text(), nullable=False),
        sa.Column("harness", sa.Text(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("round", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("not_before", TIME, nullable=False),
        sa.Column("worker_id", ID, nullable=True),
        sa.Column("lease", sa.Text(), nullable=True),
        sa.Column("lease_until", TIME, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("time_ms", sa.Double(), nullable=True),
        sa.Column("baseline_ms", sa.Double(), nullable=True),
        sa.Column("speedup", sa.Double(), nullable=True),
        sa.Column("speedup_low", sa.Double(), nullable=True),
        sa.Column("speedup_high", sa.Double(), nullable=True),
        sa.Column("build_s", sa.Double(), nullable=True),
        sa.Column("run_s", sa.Double(), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=True),
        sa.Column("log_sha", sa.Text(), nullable=True),
        sa.Column("queued_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.CheckConstraint(
            "(state = 'failed') = (outcome IS NOT NULL AND outcome = 'infra')",
            name=op.f("ck_evaluation_failed_is_infra"),
        ),
        sa.CheckConstraint(
            "(state = 'running') = (lease IS NOT NULL)", name=op.f("ck_evaluation_running_is_leased")
        ),
        sa.CheckConstraint(
            "(state IN ('done', 'failed')) = (outcome IS NOT NULL)",
            name=op.f("ck_evaluation_finished_has_outcome"),
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed')", name=op.f("ck_evaluation_state")
        ),
        sa.CheckConstraint("(lease IS NULL) = (lease_until IS NULL)", name=op.f("ck_evaluation_lease_ends")),
        sa.ForeignKeyConstraint(["kernel_sha"], ["blob.sha"], name="fk_evaluation_kernel_sha"),
        sa.ForeignKeyConstraint(["log_sha"], ["blob.sha"], name="fk_evaluation_log_sha"),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_evaluation_problem_id"),
        sa.ForeignKeyConstraint(["worker_id"], ["worker.id"], name="fk_evaluation_worker_id"),
        sa.PrimaryKeyConstraint("id", name="pk_evaluation"),
        sa.UniqueConstraint(
            "problem_id",
            "kernel_sha",
            "harness",
            "device",
            "round",
            name="uq_evaluation_problem_id_kernel_sha_harness_device_round",
        ),
    )
    op.create_index(
        "ix_evaluation_claim",
        "evaluation",
        ["device", "rank", "id"],
        sqlite_where=sa.text("state = 'queued'"),
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index(
        "ix_evaluation_lease",
        "evaluation",
        ["lease_until"],
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_table(
        "rollout_group",
        sa.Column("id", ID, nullable=False),
        sa.Column("run_id", ID, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("problem_id", ID, nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("lease", sa.Text(), nullable=True),
        sa.Column("lease_until", TIME, nullable=True),
        sa.Column("consumed_step", sa.Integer(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME, nullable=True),
        sa.CheckConstraint(
            "(state = 'open') = (lease IS NOT NULL)", name=op.f("ck_rollout_group_open_is_leased")
        ),
        sa.CheckConstraint(
            "consumed_step IS NULL OR state = 'complete'", name=op.f("ck_rollout_group_consumed_is_complete")
        ),
        sa.CheckConstraint("state IN ('open', 'complete', 'failed')", name=op.f("ck_rollout_group_state")),
        sa.CheckConstraint(
            "(lease IS NULL) = (lease_until IS NULL)", name=op.f("ck_rollout_group_lease_ends")
        ),
        sa.ForeignKeyConstraint(["problem_id"], ["problem.id"], name="fk_rollout_group_problem_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_rollout_group_run_id"),
        sa.PrimaryKeyConstraint("id", name="pk_rollout_group"),
        sa.UniqueConstraint("run_id", "ordinal", name="uq_rollout_group_run_id_ordinal"),
    )
    op.create_index(
        "ix_rollout_group_fresh",
        "rollout_group",
        ["run_id", "ordinal"],
        sqlite_where=sa.text("state = 'complete' AND consumed_step IS NULL"),
        postgresql_where=sa.text("state = 'complete' AND consumed_step IS NULL"),
    )
    op.create_index(
        "ix_rollout_group_open",
        "rollout_group",
        ["run_id", "lease_until"],
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "train_step",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("policy_in_id", ID, nullable=False),
        sa.Column("policy_out_id", ID, nullable=False),
        sa.Column("batch_hash", sa.Text(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.ForeignKeyConstraint(["policy_in_id"], ["policy_version.id"], name="fk_train_step_policy_in_id"),
        sa.ForeignKeyConstraint(["policy_out_id"], ["policy_version.id"], name="fk_train_step_policy_out_id"),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_train_step_run_id"),
        sa.PrimaryKeyConstraint("run_id", "step", name="pk_train_step"),
    )
    op.create_table(
        "finding",
        sa.Column("id", ID, nullable=False),
        sa.Column("evaluation_id", ID, nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("severity", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], name="fk_finding_evaluation_id"),
        sa.PrimaryKeyConstraint("id", name="pk_finding"),
    )
    op.create_index("ix_finding_evaluation_id", "finding", ["evaluation_id"])
    op.create_table(
        "trajectory",
        sa.Column("id", ID, nullable=False),
        sa.Column("group_id", ID, nullable=False),
        sa.Column("member", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.CheckConstraint("state IN ('open', 'closed')", name=op.f("ck_trajectory_state")),
        sa.ForeignKeyConstraint(["group_id"], ["rollout_group.id"], name="fk_trajectory_group_id"),
        sa.PrimaryKeyConstraint("id", name="pk_trajectory"),
        sa.UniqueConstraint("group_id", "member", name="uq_trajectory_group_id_member"),
    )
    op.create_table(
        "turn",
        sa.Column("id", ID, nullable=False),
        sa.Column("trajectory_id", ID, nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("policy_version_id", ID, nullable=False),
        sa.Column("prompt_sha", sa.Text(), nullable=False),
        sa.Column("prompt_template", sa.Text(), nullable=False),
        sa.Column("suggestion", sa.Text(), nullable=False),
        sa.Column("coder_call_id", ID, nullable=True),
        sa.Column("kernel_sha", sa.Text(), nullable=True),
        sa.Column("evaluation_id", ID, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("settled_at", TIME, nullable=True),
        sa.CheckConstraint(
            "(state = 'settled') = (reward IS NOT NULL OR fault IS NOT NULL)",
            name=op.f("ck_turn_settled_has_result"),
        ),
        sa.CheckConstraint("(state = 'settled') = (settled_at IS NOT NULL)", name=op.f("ck_turn_settled_at")),
        sa.CheckConstraint(
            "state <> 'evaluating' OR evaluation_id IS NOT NULL", name=op.f("ck_turn_evaluating_has_job")
        ),
        sa.CheckConstraint("state IN ('suggested', 'evaluating', 'settled')", name=op.f("ck_turn_state")),
        sa.CheckConstraint("(reward IS NULL) = (outcome IS NULL)", name=op.f("ck_turn_reward_has_outcome")),
        sa.CheckConstraint("reward IS NULL OR fault IS NULL", name=op.f("ck_turn_reward_or_fault")),
        sa.ForeignKeyConstraint(["coder_call_id"], ["coder_call.id"], name="fk_turn_coder_call_id"),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], name="fk_turn_evaluation_id"),
        sa.ForeignKeyConstraint(["kernel_sha"], ["blob.sha"], name="fk_turn_kernel_sha"),
        sa.ForeignKeyConstraint(
            ["policy_version_id"], ["policy_version.id"], name="fk_turn_policy_version_id"
        ),
        sa.ForeignKeyConstraint(["prompt_sha"], ["blob.sha"], name="fk_turn_prompt_sha"),
        sa.ForeignKeyConstraint(["trajectory_id"], ["trajectory.id"], name="fk_turn_trajectory_id"),
        sa.PrimaryKeyConstraint("id", name="pk_turn"),
        sa.UniqueConstraint("trajectory_id", "ordinal", name="uq_turn_trajectory_id_ordinal"),
    )
    op.create_index("ix_turn_coder_call_id", "turn", ["coder_call_id"])
    op.create_index("ix_turn_evaluation_id", "turn", ["evaluation_id"])
    op.create_table(
        "tokens",
        sa.Column("turn_id", ID, autoincrement=False, nullable=False),
        sa.Column("codec", sa.Text(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("prompt_len", sa.Integer(), nullable=False),
        sa.Column("completion_len", sa.Integer(), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("finish_reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name="fk_tokens_turn_id"),
        sa.PrimaryKeyConstraint("turn_id", name="pk_tokens"),
    )
    op.create_table(
        "train_sample",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("return", sa.Double(), nullable=True),
        sa.Column("advantage", sa.Double(), nullable=True),
        sa.Column("weight", sa.Double(), nullable=True),
        sa.Column("drop_reason", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_train_sample_run_id"),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name="fk_train_sample_turn_id"),
        sa.PrimaryKeyConstraint("run_id", "turn_id", name="pk_train_sample"),
    )
    op.create_index("ix_train_sample_step", "train_sample", ["run_id", "step"])
