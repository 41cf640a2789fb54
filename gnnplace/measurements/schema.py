"""Tables of the store. Rows are inserted and, by pruning alone, deleted; none is ever changed.

A run without an outcome is still going on or was killed; the steps that it has are good.
"""

from __future__ import annotations

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

VERSION = 1
"""Of the tables; a store of another version is refused."""

METADATA = MetaData()

ABOUT = Table("gnnplace_store", METADATA, Column("version", Integer, primary_key=True))

PROBLEMS = Table(
    "gnnplace_problems",
    METADATA,
    Column("digest", String(64), primary_key=True),
    Column("fingerprint", String(64), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

RUNS = Table(
    "gnnplace_runs",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("began", String(32), nullable=False, index=True),
    Column("source", Text, nullable=False),
    Column("model", Text, nullable=False, index=True),
    Column("problem", String(64), ForeignKey(PROBLEMS.c.digest), nullable=False, index=True),
    Column("fingerprint", String(64), nullable=False, index=True),
    Column("microbatches", Integer, nullable=False),
    Column("placer", Text),
    Column("placement", LargeBinary, nullable=False),
    Column("predicted", Float),
    Column("mode", String(16), nullable=False),
    Column("transport", String(16), nullable=False),
    Column("machine", Text, nullable=False),
    Column("versions", Text, nullable=False),
)

STEPS = Table(
    "gnnplace_steps",
    METADATA,
    Column("run", String(32), ForeignKey(RUNS.c.id), primary_key=True),
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("wall", Float, nullable=False),
    Column("virtual", Float, nullable=False),
    Column("interrupted", Boolean, nullable=False),
    Column("timeline", LargeBinary, nullable=False),
)

OUTCOMES = Table(
    "gnnplace_outcomes",
    METADATA,
    Column("run", String(32), ForeignKey(RUNS.c.id), primary_key=True),
    Column("ended", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    Column("error", Text, nullable=False),
    Column("verified", Boolean),
    Column("bitwise", Boolean),
)
