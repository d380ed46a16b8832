"""PipePlan's domain: nouns, prices, schedules, simulation, search, bounds and verification.

The nouns are here; the verbs are `planner.service.plan`, `.estimate` and `.simulate`, and `planner.verify.verify`.
Everything else may change. `import planner` needs neither torch nor a solver.
"""

from __future__ import annotations

from planner.cluster import Cluster, Device, DeviceKind, DeviceType, Link
from planner.errors import ExportError, InputError, InternalError, LimitError, PlannerError, RunError
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.options import Objective, Replication, SearchModel, SearchOptions
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.profile import CostTable, LayerCost, Profile, Provenance
from planner.result import Certificate, Infeasibility, PlanResult, SearchReport, Status
from planner.timeline import Estimate, Timeline
from planner.workload import Communication, Inference, Recomputation, ReplicaMode, Training

__all__ = [
    "Certificate",
    "Cluster",
    "Communication",
    "CostTable",
    "Device",
    "DeviceKind",
    "DeviceType",
    "Edge",
    "Estimate",
    "ExportError",
    "Infeasibility",
    "Inference",
    "InputError",
    "InternalError",
    "Layer",
    "LayerCost",
    "LayerGraph",
    "LimitError",
    "Link",
    "Objective",
    "Plan",
    "PlanResult",
    "PlannerError",
    "Problem",
    "Profile",
    "Provenance",
    "Recomputation",
    "ReplicaMode",
    "Replication",
    "RunError",
    "SearchModel",
    "SearchOptions",
    "SearchReport",
    "Stage",
    "Status",
    "TiedParameters",
    "Timeline",
    "Training",
]
