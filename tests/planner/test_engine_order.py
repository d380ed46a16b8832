"""The engine against a plain one that looks at every task at every moment: the same starts and ends, bit for bit."""

from __future__ import annotations

import random

import pytest

from planner.simulation.engine import Run, Task, simulate

NUM_PROGRAMS = 150


def plain(tasks: list[Task], num_resources: int) -> Run:
    """Every ready task in the order in which it became ready, then every queue; no parking, no waking."""
    start, end = [-1.0] * len(tasks), [-1.0] * len(tasks)
    freed: dict[int, float] = {}
    free = [True] * num_resources
    done: set[int] = set()
    loose: list[int] = []
    queues: dict[int, list[int]] = {}
    for number, task in enumerate(tasks):
        if task.queue is not None:
            queues.setdefault(task.queue, []).append(number)

    def begin(number: int, now: float) -> bool:
        task = tasks[number]
        if not all(free[r] for r in task.resources):
            return False
        for resource in task.resources:
            free[resource] = False
        start[number] = now
        occupied = task.seconds if task.occupied_s is None else min(task.seconds, task.occupied_s)
        freed[number], end[number] = now + occupied, now + task.seconds
        return True

    now = 0.0
    seen: set[int] = set()
    while True:
        for number in range(len(tasks)):
            ready = set(tasks[number].needs) <= done
            if tasks[number].queue is None and ready and number not in seen:
                seen.add(number)
                loose.append(number)
        loose = [number for number in loose if not begin(number, now)]
        for queue in sorted(queues):
            waiting = queues[queue]
            if waiting and set(tasks[waiting[0]].needs) <= done and begin(waiting[0], now):
                waiting.pop(0)
        moments = [*freed.values(), *(end[n] for n in range(len(tasks)) if start[n] >= 0 and n not in done)]
        if not moments:
            return Run(start_s=start, end_s=end, peak_bytes={})
        now = min(moments)
        for number in [n for n, moment in freed.items() if moment == now]:
            del freed[number]
            for resource in tasks[number].resources:
                free[resource] = True
        done |= {n for n in range(len(tasks)) if start[n] >= 0 and end[n] <= now}


def drawn(seed: int) -> tuple[list[Task], int]:
    """Queues on resources of their own and loose tasks that take two of them and a link, in few different lengths.

    A loose task follows exactly one task of a queue, so that no two become ready together in another order.
    """
    draw = random.Random(seed)
    queues, links = draw.randint(2, 4), draw.randint(1, 3)
    tasks: list[Task] = []
    count = draw.randint(4, 30)
    for number in range(count):
        queue = number % queues
        tasks.append(
            Task(
                label=f"pass {number}",
                category="compute",
                seconds=float(draw.randint(1, 3)),
                resources=(queue,),
                queue=queue,
            )
        )
    for number in range(count):
        later = [n for n in range(number + 1, count) if tasks[n].queue != tasks[number].queue]
        if not later or draw.random() < 0.2:
            continue
        reader = draw.choice(later)
        ends = (number % queues, reader % queues)
        seconds = float(draw.randint(1, 3))
        tasks[reader].needs.append(len(tasks))
        tasks.append(
            Task(
                label=f"send {number}",
                category="transfer",
                seconds=seconds,
                occupied_s=draw.choice([None, seconds, seconds - 0.5]),
                resources=(*draw.choice([ends, ()]), queues + draw.randrange(links)),
                needs=[number],
            )
        )
    return tasks, queues + links


@pytest.mark.parametrize("seed", range(NUM_PROGRAMS))
def test_waiting_tasks_start_in_the_order_in_which_they_became_ready(seed: int) -> None:
    tasks, num_resources = drawn(seed)
    run, expected = simulate(tasks, num_resources), plain(tasks, num_resources)
    assert (run.start_s, run.end_s) == (expected.start_s, expected.end_s)
    assert min(run.start_s) == 0.0
