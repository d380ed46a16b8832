"""`pipeplan profile`: what a model's layers cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from api.commands.options import FormatOption, MinibatchOption, ModelOption, OutputOption, SeedOption, counts
from api.commands.pricing import LOCAL_DEVICE_TYPE, check_sequence_length, measured, recorded
from api.commands.sourcing import Reading, read_source
from planner.errors import InputError
from profiles.model import Grain, ModelRecord, ModelSource, ProfiledModel

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="config.json or its folder, module:factory, exported .pt2, catalogue model, profile in any format, -.",
    ),
]


def command(
    source: SourceArgument,
    output: OutputOption = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="TYPE", help="Price for this device type, not measure here."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on", metavar="DEVICE", help="Measure on cpu (default), cuda or cuda:N, there as --device TYPE."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="Compare with an earlier profile of the same model."),
    ] = None,
    microbatch_sizes: Annotated[
        str, typer.Option("--microbatch-sizes", metavar="N,N", help="Microbatch sizes to measure or to price.")
    ] = "1,2,4",
    sequence_length: Annotated[int | None, typer.Option("--sequence-length", min=1, help="Tokens per sample.")] = None,
    repeats: Annotated[int | None, typer.Option("--repeats", min=5, help="Measured chains per size.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="float32, bfloat16 or float16.")] = None,
    grain: Annotated[Grain, typer.Option("--grain", help="Cut into repeated blocks or single modules.")] = Grain.BLOCK,
    seed: SeedOption = 0,
    format: FormatOption = None,
    minibatch: MinibatchOption = 1,
    model: ModelOption = None,
) -> None:
    """Write a model's layers and their costs as a profile: measured on this machine, or priced for a device type."""
    from api.commands.agreeing import earlier_profile, show_agreement
    from api.terminal.files import check_writable, write_text
    from planner import codec

    check_writable(output)
    earlier = None if against is None else earlier_profile(against)
    how = Reading(
        format=format,
        minibatch_size=minibatch,
        device_type=device,
        model=model,
        sequence_length=sequence_length,
        dtype=dtype,
        grain=grain,
        seed=seed,
    )
    found = read_source(source, how)
    sizes = counts(microbatch_sizes)
    made = _profiled(found, how, sizes, repeats, on)
    text = codec.dumps(made)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_text(output, text)
        _tell(made, output)
    if earlier is not None:
        show_agreement(earlier, made)


def _profiled(
    found: ProfiledModel | ModelRecord | ModelSource,
    how: Reading,
    sizes: list[int],
    repeats: int | None,
    on: str | None,
) -> ProfiledModel:
    """Measured where the model can be built and no device is named, priced where one is; costs stay as they are."""
    if on is not None:
        return _measured_on(found, how, sizes, repeats, on)
    if isinstance(found, ProfiledModel):
        return found
    if isinstance(found, ModelSource) and how.device_type is None:
        return measured(found, sizes, repeats)
    if how.device_type is None:
        raise InputError("a recorded model holds no seconds and cannot be built here: name a device type with --device")
    return _priced(found, how, sizes)


def _measured_on(
    found: ProfiledModel | ModelRecord | ModelSource, how: Reading, sizes: list[int], repeats: int | None, on: str
) -> ProfiledModel:
    """Measured on a device of this machine that was named; a GPU's type must be too, so that clusters can mean it."""
    if not isinstance(found, ModelSource):
        raise InputError(
            f"only a model that can be built is measured on {on!r}: give its config.json or module:factory"
        )
    if how.device_type is None and on != "cpu":
        raise InputError(
            f"the profile of {on!r} needs a device type: name the GPU's with --device, such as H100-80G-SXM"
        )
    return measured(found, sizes, repeats, on=on, device_type=how.device_type or LOCAL_DEVICE_TYPE)


def _priced(found: ModelRecord | ModelSource, how: Reading, sizes: list[int]) -> ProfiledModel:
    """The work of the model as seconds on the named device type."""
    from profiles.analytic import price
    from profiles.catalogue import device_type
    from profiles.records import in_dtype

    kind = device_type(how.device_type or "")
    source = found if isinstance(found, ModelSource) else None
    record = recorded(found) if isinstance(found, ModelSource) else found
    check_sequence_length(how.sequence_length, record)
    if how.dtype is not None:
        record = in_dtype(record, how.dtype)
    profile = price(record, kind, microbatch_sizes=sizes)
    return ProfiledModel(graph=record.graph, profiles=(profile,), source=source)


def _tell(made: ProfiledModel, output: Path) -> None:
    """One line about what was written, and the remarks of the measurement."""
    kinds = ", ".join(f"{profile.device_type} ({profile.provenance.method})" for profile in made.profiles)
    typer.echo(f"{output}: {len(made.graph.layers)} layers, costs on {kinds}", err=True)
    for profile in made.profiles:
        for note in profile.provenance.notes:
            typer.echo(f"note: {note}", err=True)
