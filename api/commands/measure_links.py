"""`pipeplan measure-links`: a cluster file with measured bandwidth and latency."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.commands.options import OutputOption
from planner.errors import InputError, RunError
from profiles.links import LinkSamples, fit

if TYPE_CHECKING:
    from rich.table import Table

    from planner.cluster import Cluster


def command(
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=2, metavar="N", help="Processes here (default: one per core)."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="TYPE", help="Under torchrun: the device type of every rank.")
    ] = None,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="SIZE,SIZE", help="Message sizes, such as 4KiB,1MiB.")
    ] = "4KiB,64KiB,512KiB,1MiB,4MiB,8MiB",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Messages per size and pair.")] = 20,
    output: OutputOption = None,
) -> None:
    """Write a cluster file with measured links, for `--cluster FILE`: of this machine's cores, or of a torchrun job."""
    from api.terminal.files import check_writable

    check_writable(output)
    measured = _measured(processes, device, _bytes(sizes), repeats)
    if measured is None:
        return  # a rank that only takes part
    cluster, samples = measured
    _write(cluster, output)
    from api.terminal.console import remarks

    remarks().print(_table(samples))


def _measured(
    processes: int | None, device: str | None, sizes: list[int], repeats: int
) -> tuple[Cluster, tuple[LinkSamples, ...]] | None:
    if find_spec("torch") is None:
        raise RunError("measuring links needs torch, which is not installed: pip install 'pipeplan[torch]'")
    from api.terminal.progress import progress_bar
    from profiles.measuring.links import is_rank, measure_links, measure_links_as_rank

    if is_rank():
        if device is None:
            raise InputError("ranks of a torchrun job need a device type: name it with --device, such as H100-80G-SXM")
        return measure_links_as_rank(device, sizes=sizes, repeats=repeats)
    if device is not None:
        raise InputError(
            "--device is for the ranks of a torchrun job: start this command under torchrun, or leave it out"
        )
    with progress_bar("measuring links") as advance:
        return measure_links(processes or os.cpu_count() or 2, sizes=sizes, repeats=repeats, on_progress=advance)


def _bytes(text: str) -> list[int]:
    from profiles.quantities import parse_bytes

    return [parse_bytes(part.strip()) for part in text.split(",")]


def _write(cluster: Cluster, output: Path | None) -> None:
    from api.terminal.files import write_text
    from planner import codec

    text = codec.dumps(cluster)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)


def _table(samples: tuple[LinkSamples, ...]) -> Table:
    """What was measured, and how well a line fits it."""
    from api.terminal.grids import table
    from api.terminal.units import seconds

    sizes = sorted(samples[0].seconds)
    columns = (
        ("link", False), *((_size(size), True) for size in sizes),
        ("latency", True), ("GB/s", True), ("largest\nerror", True),
    )  # fmt: skip
    rows = []
    for one in samples:
        line = fit(one.seconds)
        times = [seconds(one.seconds[size]) for size in sizes]
        rate = f"{line.bandwidth_bytes_per_s / 1e9:.2f}"
        rows.append((f"{one.a} - {one.b}", *times, seconds(line.latency_s), rate, f"{line.error:.0%}"))
    return table("Seconds of one message (median), and latency and bandwidth of the line through them", columns, rows)


def _size(num_bytes: int) -> str:
    for unit, size in (("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:g} {unit}"
    return f"{num_bytes} B"
