"""Times without an event queue: the end that the engine finds where transfers overlap, in a twentieth of its time.

Every worker runs its passes in one order, and nothing else takes the worker in between. So a pass needs no event:

    start = max(end of the pass before, latest arrival of what it reads),  end = start + seconds

Messages of a flow are made in order and take the same links. Where no other flow uses any of these:

    start = max(made, end of the occupation before),  arrival = start + seconds

Only flows that share a link compete. Their messages are taken in the order (moment, when it became ready, maker,
transfer), which is the order in which the engine looks at waiting transfers: one whose links are all free starts,
another is looked at again when the last of its links is free. A message that is taken at a moment t has before it
everything that is ready by t: what is not known yet waits for a message that is taken later, and ends after t.

**Theorem.** If passes and occupations that take time take so much that adding it to a moment changes it, the ends are
the engine's, to the last bit: the same sums of the same numbers. (By induction over moments. All that the engine frees
or finishes at t was started before t, so that it is known when the engine looks at what may start at t, once.)
`planner.simulation.makespan` asks the engine where that does not hold and where transfers block, and for what follows
the passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from planner.simulation.flows import Flow, Inbox, Step

LEAST_SHARE = 2.0**-50
"""Of the iteration: a double that is at least this large changes any moment of it when it is added."""

Message = tuple[float, float, int, int]
"""(moment to look at it, moment at which it was ready, number of its flow, microbatch)."""


Passes = Sequence[tuple[Iterator[int], Step]]
"""Of one worker in order: where the microbatch comes from, and the step."""


def run(workers: Sequence[Passes], flows: Sequence[Flow]) -> bool:
    """Run the passes of all workers, so that every step knows its end. False where some pass never starts.

    O(passes + messages log workers).
    """
    heap: list[Message] = []
    woken, done = list(range(len(workers))), list[int]()
    running = [_run(number, passes, heap, woken, done) for number, passes in enumerate(workers)]
    free_s = {link: 0.0 for flow in flows for link in flow.competing}
    while True:
        while woken:
            next(running[woken.pop()], None)
        if not heap:
            break
        moment, ready, number, microbatch = heappop(heap)
        flow, clear = flows[number], moment
        for link in flow.competing:
            if free_s[link] > clear:
                clear = free_s[link]
        if clear > moment:
            heappush(heap, (clear, ready, number, microbatch))
            continue
        for link in flow.competing:
            free_s[link] = moment + flow.occupied_s
        _arrive(flow.inbox, microbatch, moment + flow.seconds)
        next(running[flow.reader], None)
    return len(done) == len(workers)


def _arrive(inbox: Inbox, microbatch: int, arrival_s: float) -> None:
    """One message that the pass of a microbatch waited for."""
    if arrival_s > inbox.ready_s[microbatch]:
        inbox.ready_s[microbatch] = arrival_s
    inbox.missing[microbatch] -= 1


def _run(worker: int, passes: Passes, heap: list[Message], woken: list[int], done: list[int]) -> Iterator[None]:
    """One worker. It yields where it has to wait, and is to be asked again when its inbox is full."""
    free = 0.0
    for numbers, step in passes:
        microbatch, inbox = next(numbers), step.inbox
        while inbox.missing[microbatch]:
            yield
        start = inbox.ready_s[microbatch]
        if start < free:
            start = free
        free = start + step.seconds
        if free > step.end_s:  # replicas that are dealt microbatches share the step
            step.end_s = free
        if step.done is not None:
            step.done.missing[microbatch] -= 1
        for flow in step.sent[microbatch]:
            if flow.competing:
                heappush(heap, (free, free, flow.number, microbatch))
            else:
                at = free if free > flow.free_s else flow.free_s
                flow.free_s = at + flow.occupied_s
                _arrive(flow.inbox, microbatch, at + flow.seconds)
                woken.append(flow.reader)
    done.append(worker)
