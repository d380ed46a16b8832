"""Jobs: plans waiting, being solved, and done. Lives on the event loop; solves live in processes of their own."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from api.http.answers import CheckedRequest, State
from api.http.metrics import Metrics
from api.http.orders import Outcome, Task, refusal
from api.http.problems import RefusalError, problem_document
from api.http.settings import Settings
from api.http.solving import Solving, WorkerLostError
from api.http.store import PlanRecord, PlanStore, StoreBusyError, is_finished

log = logging.getLogger(__name__)

T = TypeVar("T")
STORE_RETRY_S = 1.0


class Jobs:
    """A bounded queue before a fixed number of solvers.

    Unfinished plans of an earlier life are queued again at `start`. `stop` kills the running solves, whose plans
    then wait for the next start.
    """

    def __init__(self, store: PlanStore, solving: Solving, settings: Settings, metrics: Metrics) -> None:
        self._store = store
        self._solving = solving
        self._settings = settings
        self._metrics = metrics
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._running: dict[str, asyncio.Task[Outcome]] = {}
        self._finished: dict[str, asyncio.Event] = {}
        self._solvers: list[asyncio.Task[None]] = []

    @property
    def num_waiting(self) -> int:
        """Plans in the queue."""
        return self._queue.qsize()

    @property
    def num_running(self) -> int:
        """Plans being solved."""
        return len(self._running)

    async def start(self) -> None:
        """Queue again what an earlier process left, and start the solvers."""
        for plan_id in await asyncio.to_thread(self._store.unfinished):
            await self._recover(plan_id)
        self._solvers = [asyncio.create_task(self._solver()) for _ in range(self._settings.num_solvers)]

    async def stop(self) -> None:
        """Kill the running solves and wait until their processes are gone."""
        for solver in self._solvers:
            solver.cancel()
        await asyncio.gather(*self._solvers, return_exceptions=True)

    async def submit(self, body: bytes, checked: CheckedRequest) -> PlanRecord:
        """Store a new job and queue it; a queue-full problem (503) when too many wait."""
        if self.num_waiting >= self._settings.queue_size:
            raise RefusalError(503, "queue-full", f"{self.num_waiting} plans wait already: try again later")
        record = PlanRecord(
            id=_new_id(),
            state=State.QUEUED,
            attempts=0,
            model=checked.model,
            num_layers=checked.num_layers,
            num_devices=checked.num_devices,
            time_limit_s=checked.time_limit_s,
            created_at=_now(),
            request=body,
        )
        self._finished[record.id] = asyncio.Event()
        try:
            await asyncio.to_thread(self._store.put, record)
        except StoreBusyError:
            del self._finished[record.id]
            raise
        self._queue.put_nowait(record.id)
        return record

    async def wait(self, plan_id: str, seconds: float) -> None:
        """Return when the job is finished, or after `seconds`."""
        event = self._finished.get(plan_id)
        if event is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return

    async def cancel(self, plan_id: str) -> PlanRecord | None:
        """Cancel a job and wait until its process is gone; the record afterwards, None when there is no such job.

        A cancelled job stays as it is; an already-finished problem (409) for one that ended otherwise.
        """
        record = await asyncio.to_thread(self._store.get, plan_id)
        while record is not None and not is_finished(record):
            if await asyncio.to_thread(self._mark_cancelled, record):
                await self._abort(plan_id)
            record = await asyncio.to_thread(self._store.get, plan_id)
        if record is not None and record.state != State.CANCELLED:
            detail = f"the plan has {record.state.value} already: there is nothing to cancel"
            raise RefusalError(409, "already-finished", detail)
        return record

    async def remove(self, plan_id: str) -> bool:
        """Remove a job, killing it first; whether there was one."""
        found = await asyncio.to_thread(self._store.delete, plan_id)
        if found:
            await self._abort(plan_id)
        return found

    def _mark_cancelled(self, record: PlanRecord) -> bool:
        return self._store.update(record, state=State.CANCELLED, finished_at=_now())

    async def _abort(self, plan_id: str) -> None:
        solve = self._running.get(plan_id)
        if solve is not None:
            solve.cancel()
            await asyncio.wait([solve])
        self._announce(plan_id)

    def _announce(self, plan_id: str) -> None:
        event = self._finished.pop(plan_id, None)
        if event is not None:
            event.set()

    async def _recover(self, plan_id: str) -> None:
        record = await asyncio.to_thread(self._store.get, plan_id)
        if record is None:
            return
        if record.attempts >= self._settings.max_attempts:
            await self._finish(record, _lost(record.attempts))
            return
        if record.state == State.RUNNING:
            await asyncio.to_thread(lambda: self._store.update(record, state=State.QUEUED))
        self._finished[plan_id] = asyncio.Event()
        self._queue.put_nowait(plan_id)

    async def _solver(self) -> None:
        while True:
            plan_id = await self._queue.get()
            try:
                await self._solve(plan_id)
            except Exception:
                log.exception("plan %s could not be solved", plan_id)

    async def _solve(self, plan_id: str) -> None:
        """One attempt at one job: claim it, run it, store what came out, unless it was cancelled meanwhile."""
        record = await self._claim(plan_id)
        if record is None:
            return
        started = time.monotonic()
        limit_s = record.time_limit_s + self._settings.grace_s
        solve = asyncio.create_task(self._solving.run(Task.PLAN, record.request, limit_s=limit_s))
        self._running[plan_id] = solve
        try:
            await asyncio.wait([solve])
        except asyncio.CancelledError:  # the service stops
            solve.cancel()
            await asyncio.wait([solve])
            await asyncio.to_thread(self._give_back, record)
            raise
        finally:
            del self._running[plan_id]
            self._metrics.add_solve(time.monotonic() - started)
        if not solve.cancelled():
            await self._settle(record, solve)

    def _give_back(self, record: PlanRecord) -> None:
        """Queue a plan whose solve was stopped with the service: that attempt does not count."""
        with contextlib.suppress(StoreBusyError):  # then it is found running at the next start
            self._store.update(record, state=State.QUEUED, attempts=record.attempts - 1)

    async def _claim(self, plan_id: str) -> PlanRecord | None:
        record = await _patiently(lambda: self._store.get(plan_id))
        if record is None or record.state != State.QUEUED:
            return None
        changes: dict[str, Any] = {"state": State.RUNNING, "attempts": record.attempts + 1, "started_at": _now()}
        claimed = await _patiently(lambda: self._store.update(record, **changes))
        return replace(record, **changes) if claimed else None

    async def _settle(self, record: PlanRecord, solve: asyncio.Task[Outcome]) -> None:
        fault = solve.exception()
        if fault is None:
            await self._finish(record, solve.result())
        elif isinstance(fault, WorkerLostError) and record.attempts < self._settings.max_attempts:
            log.warning("plan %s, attempt %d: %s", record.id, record.attempts, fault)
            if await _patiently(lambda: self._store.update(record, state=State.QUEUED)):
                self._queue.put_nowait(record.id)
        elif isinstance(fault, WorkerLostError):
            await self._finish(record, _lost(record.attempts))
        else:
            log.error("plan %s: the worker could not be run", record.id, exc_info=fault)
            await self._finish(record, refusal(problem_document(500, "internal", "the solver could not be run")))

    async def _finish(self, record: PlanRecord, outcome: Outcome) -> None:
        state = State.SUCCEEDED if outcome.ok else State.FAILED
        changes: dict[str, Any] = {"state": state, "finished_at": _now(), "answer": outcome.body}
        await _patiently(lambda: self._store.update(record, **changes))
        self._announce(record.id)


async def _patiently(call: Callable[[], T]) -> T:
    """A call to the store that waits for as long as the store is busy: nobody else keeps what it brings."""
    while True:
        try:
            return await asyncio.to_thread(call)
        except StoreBusyError as fault:
            log.warning("%s", fault)
            await asyncio.sleep(STORE_RETRY_S)


def _lost(attempts: int) -> Outcome:
    detail = f"the solver process died {attempts} times (killed, or out of memory): send a smaller problem"
    return refusal(problem_document(500, "worker-lost", detail))


def _new_id() -> str:
    """26 characters of 128 random bits: an id cannot be guessed."""
    return base64.b32encode(secrets.token_bytes(16)).decode().rstrip("=").lower()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
