"""A few counters in the Prometheus text format, and the middleware that counts answers."""

from __future__ import annotations

from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.http.answers import State

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counts since the start of this process."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, int]] = Counter()
        self._solves = 0
        self._solve_seconds = 0.0

    def add_answer(self, method: str, status: int) -> None:
        """One HTTP answer."""
        self._answers[method, status] += 1

    def add_solve(self, seconds: float) -> None:
        """One run of a worker on a plan, however it ended."""
        self._solves += 1
        self._solve_seconds += seconds

    def text(self, *, waiting: int, running: int, stored: dict[State, int]) -> str:
        """All metrics; the gauges are given."""
        answers = [
            f'pipeplan_http_answers_total{{method="{method}",status="{status}"}} {count}'
            for (method, status), count in sorted(self._answers.items())
        ]
        plans = [f'pipeplan_plans{{state="{state.value}"}} {count}' for state, count in stored.items()]
        lines = [
            *_family("pipeplan_http_answers_total", "counter", "HTTP answers", answers),
            *_family("pipeplan_plans", "gauge", "Stored plans", plans),
            *_family("pipeplan_queue_length", "gauge", "Plans that wait", [f"pipeplan_queue_length {waiting}"]),
            *_family("pipeplan_solves_running", "gauge", "Plans in work", [f"pipeplan_solves_running {running}"]),
            *_family("pipeplan_solves_total", "counter", "Worker runs", [f"pipeplan_solves_total {self._solves}"]),
            *_family(
                "pipeplan_solve_seconds_total",
                "counter",
                "Seconds in worker runs",
                [f"pipeplan_solve_seconds_total {self._solve_seconds:.6f}"],
            ),
        ]
        return "\n".join(lines) + "\n"


class AnswerCounter:
    """ASGI middleware: counts every answer and forbids browsers to guess its type."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.add_answer(_known_method(scope["method"]), message["status"])
                message["headers"] = [*message.get("headers", []), (b"x-content-type-options", b"nosniff")]
            await send(message)

        await self._app(scope, receive, counted)


def _known_method(method: str) -> str:
    """Method names come from the client: only the usual ones become labels."""
    return method if method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} else "other"


def _family(name: str, kind: str, summary: str, samples: list[str]) -> list[str]:
    return [f"# HELP {name} {summary}.", f"# TYPE {name} {kind}", *samples]
