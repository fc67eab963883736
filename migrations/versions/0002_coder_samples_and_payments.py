"""Several coder samples of one suggestion, and what a run paid or may have to pay."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002_coder_samples_and_payments"
down_revision = "0001_initial"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "turn_sample",
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("sample", sa.Integer(), nullable=False),
        sa.Column("coder_call_id", ID, nullable=True),
        sa.Column("kernel_sha", sa.Text(), nullable=True),
        sa.Column("evaluation_id", ID, nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("chosen", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["turn_id"], ["turn.id"], name="fk_turn_sample_turn_id"),
        sa.ForeignKeyConstraint(["coder_call_id"], ["coder_call.id"], name="fk_turn_sample_coder_call_id"),
        sa.ForeignKeyConstraint(["kernel_sha"], ["blob.sha"], name="fk_turn_sample_kernel_sha"),
        sa.ForeignKeyConstraint(["evaluation_id"], ["evaluation.id"], name="fk_turn_sample_evaluation_id"),
        sa.CheckConstraint("chosen IN (0, 1)", name="chosen"),
        sa.CheckConstraint("reward IS NULL OR fault IS NULL", name="reward_or_fault"),
        sa.CheckConstraint("(reward IS NULL) = (outcome IS NULL)", name="reward_has_outcome"),
        sa.PrimaryKeyConstraint("turn_id", "sample", name="pk_turn_sample"),
    )
    op.create_index("ix_turn_sample_evaluation_id", "turn_sample", ["evaluation_id"])
    op.create_index("ix_turn_sample_coder_call_id", "turn_sample", ["coder_call_id"])
    op.create_table(
        "coder_payment",
        sa.Column("run_id", ID, nullable=False),
        sa.Column("key_sha", sa.Text(), nullable=False),
        sa.Column("paid_usd", sa.Double(), nullable=False),
        sa.Column("reserved_usd", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.id"], name="fk_coder_payment_run_id"),
        sa.PrimaryKeyConstraint("run_id", "key_sha", name="pk_coder_payment"),
    )
    reserved = sa.text("reserved_usd > 0")
    op.create_index(
        "ix_coder_payment_reserved",
        "coder_payment",
        ["key_sha"],
        sqlite_where=reserved,
        postgresql_where=reserved,
    )
    # What was paid so far is known by the turns that used it; a shared answer was paid by the run that had it first.
    op.execute(
        """
        INSERT INTO coder_payment (run_id, key_sha, paid_usd, reserved_usd)
        SELECT min(g.run_id), c.key_sha, c.usd, 0
        FROM turn u
        JOIN trajectory t ON t.id = u.trajectory_id
        JOIN rollout_group g ON g.id = t.group_id
        JOIN coder_call c ON c.id = u.coder_call_id
        GROUP BY c.key_sha, c.usd
        """
    )
