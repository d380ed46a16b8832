"""The SQLite store: rows as they were put, changes only by the attempt that holds the row, one owner per file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from api.http import store
from api.http.answers import State
from api.http.store import PlanRecord, SqlitePlanStore, StoreBusyError


def record(name: str, state: State = State.QUEUED) -> PlanRecord:
    return PlanRecord(
        id=name,
        state=state,
        attempts=0,
        model="m",
        num_layers=4,
        num_devices=2,
        time_limit_s=1.5,
        created_at="2026-01-01T00:00:00.000+00:00",
        request=b'{"a":"\\u0000"}',
    )


@pytest.fixture
def plans(tmp_path: Path) -> Iterator[SqlitePlanStore]:
    made = SqlitePlanStore(tmp_path / "folder" / "plans.sqlite")
    yield made
    made.close()


def test_what_is_put_is_got(plans: SqlitePlanStore) -> None:
    plans.put(record("a"))
    assert plans.get("a") == replace(record("a"), sequence=1)
    assert plans.get("b") is None
    with pytest.raises(sqlite3.IntegrityError):
        plans.put(record("a"))


def test_only_the_holder_of_a_row_may_change_it(plans: SqlitePlanStore) -> None:
    plans.put(record("a"))
    assert plans.update(record("a"), state=State.RUNNING, attempts=1)
    assert not plans.update(record("a"), state=State.CANCELLED)
    held = replace(record("a", State.RUNNING), attempts=1)
    assert not plans.update(replace(held, attempts=2), state=State.SUCCEEDED, answer=b"late")
    assert plans.update(held, state=State.SUCCEEDED, answer=b"{}")
    found = plans.get("a")
    assert found is not None
    assert (found.state, found.answer) == (State.SUCCEEDED, b"{}")


def test_pages_go_from_the_newest_to_the_oldest(plans: SqlitePlanStore) -> None:
    for name in "abc":
        plans.put(record(name))
    first = plans.page(2, None)
    assert [row.id for row in first] == ["c", "b"]
    assert [row.id for row in plans.page(2, first[-1].sequence)] == ["a"]
    assert first[0].request == b""


def test_a_number_is_never_given_twice(plans: SqlitePlanStore) -> None:
    plans.put(record("a"))
    assert plans.delete("a")
    assert not plans.delete("a")
    plans.put(record("b"))
    found = plans.get("b")
    assert found is not None
    assert found.sequence == 2


def test_unfinished_plans_and_counts(plans: SqlitePlanStore) -> None:
    for name, state in (("a", State.RUNNING), ("b", State.FAILED), ("c", State.QUEUED)):
        plans.put(record(name, state))
    assert plans.unfinished() == ["a", "c"]
    assert plans.counts() == {**dict.fromkeys(State, 0), State.RUNNING: 1, State.FAILED: 1, State.QUEUED: 1}


def test_the_secret_lives_as_long_as_the_store(tmp_path: Path) -> None:
    secrets = set()
    for _ in range(2):
        plans = SqlitePlanStore(tmp_path / "plans.sqlite")
        secrets.add(plans.secret())
        plans.close()
    other = SqlitePlanStore(tmp_path / "other.sqlite")
    secrets.add(other.secret())
    other.close()
    assert len(secrets) == 2
    assert all(len(secret) == 32 for secret in secrets)


def test_a_full_disk_is_busy_and_nothing_is_half_written(tmp_path: Path, plans: SqlitePlanStore) -> None:
    plans.put(record("a"))
    path = tmp_path / "folder" / "plans.sqlite"
    real_connect = sqlite3.connect

    def small(*args: object, **options: object) -> sqlite3.Connection:
        connection = real_connect(*args, **options)  # type: ignore[call-overload]
        connection.execute("PRAGMA max_page_count = 8")
        return connection  # type: ignore[no-any-return]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.sqlite3, "connect", small)
        with pytest.raises(StoreBusyError, match="full"):
            plans.put(replace(record("b"), request=b"x" * 100_000))
    assert plans.get("b") is None
    with sqlite3.connect(path) as check:
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


def test_the_journal_is_the_safe_one(tmp_path: Path, plans: SqlitePlanStore) -> None:
    plans.put(record("a"))
    assert not list((tmp_path / "folder").glob("*-wal"))
