"""`pipeplan`: the command line. One file per command in `api.commands`; this one joins them and maps faults to exits.

Exit status: 0 plan found (or the command did its work), 1 our fault, 2 bad input, 3 proven infeasible, 4 a limit was
reached without a plan, 130 interrupted, 143 terminated. Results go to standard output, the rest to standard error.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer

from api.commands import (
    catalogue,
    estimate,
    export,
    import_plan,
    measure_links,
    plan,
    profile,
    run,
    serve,
    simulate,
)
from api.entry import INTERRUPTED
from planner.errors import PlannerError

BROKEN_PIPE = 141
TERMINATED = 143
UsageError: type[Exception] = typer.BadParameter.__bases__[0]
"""The base of all faults in the command line's words (typer has no public name for it)."""

app = typer.Typer(
    name="pipeplan",
    help="Plans pipeline-parallel training and inference: stages, replication, microbatches and schedule, with proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (profile, measure_links, plan, estimate, simulate, run, export, import_plan, serve, catalogue):
    app.command(name=command.__name__.rpartition(".")[2].replace("_", "-"))(command.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"pipeplan {version('pipeplan')}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_show_version, is_eager=True)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Logs on standard error.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks for errors.")] = False,
) -> None:
    """Options of every command."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s: %(message)s")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's) and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with raise_on_termination():
            return int(app(words, prog_name="pipeplan", standalone_mode=False) or 0)
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads: leave without a word about it
        return BROKEN_PIPE
    except Exception as fault:
        return _report(fault, with_traceback="--debug" in words)


@contextmanager
def raise_on_termination() -> Iterator[None]:
    """SIGTERM leaves as an exception does, so that child processes are ended on the way out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(signal_number: int, frame: FrameType | None) -> None:
    raise SystemExit(TERMINATED)


def _report(fault: Exception, *, with_traceback: bool) -> int:
    """One or two lines about a fault, and the exit status that it maps to."""
    if with_traceback:
        traceback.print_exception(fault)
    if isinstance(fault, UsageError):
        return _usage(fault)
    if isinstance(fault, PlannerError):
        return _say(f"error: {fault}{f' (at {fault.pointer})' if fault.pointer else ''}", fault.exit_status)
    if isinstance(fault, MemoryError):
        return _say("error: out of memory: give a smaller problem or more memory", 4)
    hint = "please report it with the command line" + ("" if with_traceback else "; --debug shows where")
    return _say(f"error: this is our fault: {type(fault).__name__}: {fault}\n{hint}", 1)


def _usage(fault: Exception) -> int:
    """Help where no command was given, else what is wrong with the words."""
    message: str = fault.format_message()  # type: ignore[attr-defined]
    context = getattr(fault, "ctx", None)
    if not message.strip() or type(fault).__name__ == "NoArgsIsHelpError":
        return 2
    _say(f"error: {message}", 2)
    return _say(f"see: {context.command_path} --help", 2) if context is not None else 2


def _say(text: str, status: int) -> int:
    typer.echo(text, err=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
