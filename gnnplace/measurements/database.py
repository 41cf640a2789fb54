"""Opens the database of a store: SQLite in a file by default, any SQLAlchemy URL; and its tables.

SQLite runs with a write-ahead log: readers never wait, writers take turns, and a process that is
killed at any moment leaves either all of a transaction or nothing of it. Every transaction has a
connection of its own, so that nothing of it is inherited by forked workers.

Rows are inserted and, by pruning alone, deleted; none is ever changed. A run without an outcome is
still going on or was killed; the steps that it has are good.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    insert,
    make_url,
    select,
)
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    NoSuchModuleError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from gnnplace.errors import InputError

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
    Column(
        "problem", String(64), ForeignKey(PROBLEMS.c.digest), nullable=False, index=True
    ),
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


PATIENCE = 60.0
"""Seconds that a writer waits for its turn."""
PAUSE = 0.01
BROKEN = (SQLAlchemyError, sqlite3.Error, OSError, ModuleNotFoundError, UnicodeError)
SQLITE = "sqlite"


class Database:
    """An opened database with the store's tables.

    Args:
        url: A path of a SQLite file, or a SQLAlchemy URL.

    Raises:
        InputError: it cannot be opened, or holds something else; says why.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with self.told("opened"):
            self._engine = _engine(url)
            with self.writing() as connection:
                METADATA.create_all(connection)
                _check_version(connection, self.shown)

    @property
    def shown(self) -> str:
        """Return the URL without its password."""
        if "://" in self.url:
            return make_url(self.url).render_as_string()
        return self.url

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction that is kept as a whole or not at all."""
        with self.told("written"), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection that only reads: one consistent view."""
        options = {"gnnplace_reads": True}
        with (
            self.told("read"),
            self._engine.connect().execution_options(**options) as connection,
        ):
            yield connection

    @contextmanager
    def told(self, what: str) -> Iterator[None]:
        """Turn the database's errors into one line.

        Raises:
            InputError: naming the store and the reason.
        """
        try:
            yield
        except BROKEN as error:
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            raise InputError(
                f"store {self.shown!r}: cannot be {what}: {reason}; give a path of a SQLite file "
                "or a SQLAlchemy URL"
            ) from None

    def dispose(self) -> None:
        """Close what is open."""
        self._engine.dispose()


def add_once(connection: Connection, table: Table, row: dict[str, Any]) -> None:
    """Insert a row unless its key is there, whoever put it there."""
    try:
        with connection.begin_nested():
            connection.execute(insert(table), row)
    except IntegrityError:
        return


def _engine(url: str) -> Engine:
    if "://" not in url:
        Path(url).resolve().parent.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{url}"
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() != SQLITE:
            return create_engine(parsed, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError) as error:
        raise OSError(str(error)) from None
    engine = create_engine(
        parsed, poolclass=NullPool, connect_args={"timeout": PATIENCE}
    )
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: sqlite3.Connection, record: object) -> None:
    """Set a new connection up; transactions begin by our own words (see `_begin`)."""
    connection.isolation_level = None
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on; SQLite does not wait its turn for that by itself."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)


def _begin(connection: Connection) -> None:
    """Begin a transaction as a writer.

    One that began by reading could not write after another writer.
    """
    reads = connection.get_execution_options().get("gnnplace_reads", False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


def _check_version(connection: Connection, url: str) -> None:
    add_once(connection, ABOUT, {"version": VERSION})
    versions = [row.version for row in connection.execute(select(ABOUT))]
    if versions != [VERSION]:
        raise InputError(
            f"store {url!r}: its version is {max(versions)}, this gnnplace knows {VERSION}; update "
            "gnnplace or use another store"
        )
