"""Where plans are kept: a small interface, and SQLite behind it.

One process owns the file (a lock says so); its threads may call at once. Every change of a job is a
compare-and-set on its state and its attempt, so that a late result of a lost attempt changes nothing.
"""

from __future__ import annotations

import fcntl
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Protocol

from api.http.answers import FINISHED, State
from api.http.problems import RefusalError
from planner.errors import InputError

BUSY_TIMEOUT_S = 5.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS plans (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    model TEXT NOT NULL,
    num_layers INTEGER NOT NULL,
    num_devices INTEGER NOT NULL,
    time_limit_s REAL NOT NULL,
    created_at TEXT NOT NULL,
    started_at TEXT,
    finished_at TEXT,
    request BLOB NOT NULL,
    answer BLOB
);
CREATE INDEX IF NOT EXISTS plans_by_state ON plans (state);
CREATE TABLE IF NOT EXISTS service (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord:
    """One row. `answer` is the PlanResult of a success, the problem document of a failure; listings leave blobs out."""

    id: str
    state: State
    attempts: int
    model: str
    num_layers: int
    num_devices: int
    time_limit_s: float
    created_at: str
    started_at: str | None = None
    finished_at: str | None = None
    request: bytes = b""
    answer: bytes | None = None
    sequence: int = 0


class PlanStore(Protocol):
    """What the service needs of a store. Calls block; StoreBusyError when the store cannot answer now."""

    def put(self, record: PlanRecord) -> None:
        """Store a new plan; it is durable when this returns."""

    def get(self, plan_id: str) -> PlanRecord | None:
        """The plan, or None."""

    def update(self, record: PlanRecord, **changes: Any) -> bool:
        """Change the row if its state and attempts are still the record's; whether it was so."""

    def page(self, limit: int, before: int | None) -> list[PlanRecord]:
        """The newest `limit` plans with a sequence below `before`, without blobs."""

    def unfinished(self) -> list[str]:
        """Ids of queued and running plans, the oldest first."""

    def delete(self, plan_id: str) -> bool:
        """Remove a plan; whether there was one."""

    def counts(self) -> dict[State, int]:
        """Number of plans per state."""

    def secret(self) -> bytes:
        """32 random bytes that stay the same for the life of the store (they sign cursors)."""


class StoreBusyError(RefusalError):
    """The store is locked, or its disk is full. Nothing was written."""

    def __init__(self, reason: str) -> None:
        super().__init__(503, "store-busy", f"the store of plans cannot answer now ({reason}): try again")


COLUMNS = ", ".join(field.name for field in fields(PlanRecord))
SUMMARY = COLUMNS.replace("request", "x'' AS request").replace("answer", "NULL AS answer")


class SqlitePlanStore:
    """Plans in one SQLite file, with the rollback journal and full synchronisation: what is committed stays.

    (Write-ahead logging loses writes in versions before 3.51.3, so it is not used.)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _own(path)
        with self._connection() as connection:
            connection.executescript(SCHEMA)

    def close(self) -> None:
        """Give the file free for another process."""
        self._lock.close()

    def put(self, record: PlanRecord) -> None:
        names = [field.name for field in fields(PlanRecord) if field.name != "sequence"]
        marks = ", ".join("?" * len(names))
        with self._connection() as connection:
            connection.execute(
                f"INSERT INTO plans ({', '.join(names)}) VALUES ({marks})", [getattr(record, name) for name in names]
            )

    def get(self, plan_id: str) -> PlanRecord | None:
        with self._connection(write=False) as connection:
            rows = connection.execute(f"SELECT {COLUMNS} FROM plans WHERE id = ?", (plan_id,)).fetchall()
        return _record(rows[0]) if rows else None

    def update(self, record: PlanRecord, **changes: Any) -> bool:
        settings = ", ".join(f"{name} = ?" for name in changes)
        with self._connection() as connection:
            cursor = connection.execute(
                f"UPDATE plans SET {settings} WHERE id = ? AND state = ? AND attempts = ?",
                (*changes.values(), record.id, record.state, record.attempts),
            )
            return cursor.rowcount == 1

    def page(self, limit: int, before: int | None) -> list[PlanRecord]:
        with self._connection(write=False) as connection:
            rows = connection.execute(
                f"SELECT {SUMMARY} FROM plans WHERE ? IS NULL OR sequence < ? ORDER BY sequence DESC LIMIT ?",
                (before, before, limit),
            ).fetchall()
        return [_record(row) for row in rows]

    def unfinished(self) -> list[str]:
        with self._connection(write=False) as connection:
            rows = connection.execute(
                "SELECT id FROM plans WHERE state IN (?, ?) ORDER BY sequence", (State.QUEUED, State.RUNNING)
            ).fetchall()
        return [row["id"] for row in rows]

    def delete(self, plan_id: str) -> bool:
        with self._connection() as connection:
            return connection.execute("DELETE FROM plans WHERE id = ?", (plan_id,)).rowcount == 1

    def counts(self) -> dict[State, int]:
        with self._connection(write=False) as connection:
            rows = connection.execute("SELECT state, count(*) AS number FROM plans GROUP BY state").fetchall()
        return {state: next((row["number"] for row in rows if row["state"] == state), 0) for state in State}

    def secret(self) -> bytes:
        with self._connection() as connection:
            connection.execute("INSERT OR IGNORE INTO service VALUES ('secret', ?)", (secrets.token_bytes(32),))
            row = connection.execute("SELECT value FROM service WHERE name = 'secret'").fetchone()
            return bytes(row["value"])

    @contextmanager
    def _connection(self, *, write: bool = True) -> Iterator[sqlite3.Connection]:
        """One short transaction on a connection of its own; committed when the block ends well."""
        connection = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            connection.row_factory = sqlite3.Row
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield connection
            if connection.in_transaction:
                connection.execute("COMMIT")
        except sqlite3.OperationalError as fault:
            raise StoreBusyError(str(fault)) from fault
        finally:
            connection.close()


def is_finished(record: PlanRecord) -> bool:
    """Whether nothing more will happen to the plan."""
    return record.state in FINISHED


def _own(path: Path) -> IO[bytes]:
    """The lock that makes this process the only service on the file. InputError when another one holds it."""
    lock = Path(f"{path}.lock").open("ab")  # noqa: SIM115 - held open for the life of the store
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise InputError(f"another service uses {path}: stop it, or set PIPEPLAN_DATABASE to another file") from None
    return lock


def _record(row: sqlite3.Row) -> PlanRecord:
    return PlanRecord(**{**dict(row), "state": State(row["state"])})
