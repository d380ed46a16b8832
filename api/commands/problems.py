"""From the words on the command line to a `Problem`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from api.commands.pricing import check_sequence_length, is_local, measured, recorded, sizes_to_measure
from api.commands.sourcing import Reading, read_source
from api.commands.workload import GivenWorkload, searched_of, workload_of
from planner.cluster import Cluster
from planner.errors import InputError
from planner.options import Decision
from planner.problem import Problem
from planner.profile import DTYPE_BYTES
from profiles.model import ModelRecord, ModelSource, ProfiledModel

DEFAULT_DTYPE = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltProblem:
    """A problem, how to build its model where that is known, and which decisions are to be searched."""

    problem: Problem
    recipe: ModelSource | None
    searched: tuple[Decision, ...]


def built_problem(
    source: str, cluster: str | None, given: GivenWorkload, how: Reading, *, any_tensor: bool = False
) -> BuiltProblem:
    """The problem that the command line asks for.

    A model that can be built is measured for the cores of this machine and priced for everything else; a recorded
    one is priced. For priced models, decisions of which nothing is said are searched; measured costs know one tensor
    degree, and of them only what is `auto` by word is searched. With `any_tensor` a model is priced at all tensor
    degrees though one is given, for plans that are compared. InputError for what is missing or does not fit together.
    """
    from profiles.sources import build_problem

    where = _cluster(cluster)
    found = read_source(source, replace(how, dtype=given.dtype()))
    recipe = found if isinstance(found, ModelSource) else getattr(found, "source", None)
    model = _costed(found, where, given) if isinstance(found, ModelSource) else found
    if isinstance(model, ModelRecord):
        model = _in_precision(model, given)
        given = _at_length(given, model)
    searched = searched_of(given, by_default=isinstance(model, ModelRecord))
    work = workload_of(given, model.workload, _dtype(model))
    problem = build_problem(model, where, work, any_tensor=any_tensor or Decision.TENSOR in searched)
    return BuiltProblem(problem=problem, recipe=recipe, searched=searched)


def _cluster(text: str | None) -> Cluster | None:
    if text is None:
        return None
    from profiles.clusters import parse_cluster

    return parse_cluster(text)


def _costed(source: ModelSource, cluster: Cluster | None, given: GivenWorkload) -> ProfiledModel | ModelRecord:
    """Measured for local cores; for other devices the work alone, in the configuration's own dtype."""
    if cluster is None:
        raise InputError("this source holds no devices: name a cluster with --cluster, for example 8xH100-80G-SXM")
    if is_local(cluster):
        return measured(source, sizes_to_measure(workload_of(given, None, source.dtype)))
    return recorded(source if given.precision else replace(source, dtype=_own_dtype(source)))


def _own_dtype(source: ModelSource) -> str:
    """What a configuration says its weights are in."""
    values = source.config or {}
    said = values.get("dtype", values.get("torch_dtype"))
    return said if isinstance(said, str) and said in DTYPE_BYTES else DEFAULT_DTYPE


def _in_precision(record: ModelRecord, given: GivenWorkload) -> ModelRecord:
    from profiles.records import in_dtype

    dtype = given.dtype()
    return record if dtype is None else in_dtype(record, dtype)


def _at_length(given: GivenWorkload, record: ModelRecord) -> GivenWorkload:
    """The record's sequence length is the workload's."""
    check_sequence_length(given.sequence_length, record)
    return replace(given, sequence_length=record.sequence_length)


def _dtype(model: ProfiledModel | ModelRecord) -> str:
    if isinstance(model, ModelRecord):
        return model.dtype
    return model.profiles[0].dtype if model.profiles else DEFAULT_DTYPE
