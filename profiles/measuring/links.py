"""`measure_links`: the devices of this machine, or of a torchrun job, as a cluster whose links were measured."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

from planner.cluster import Cluster, Device
from planner.errors import InputError
from planner.runtime.launch import Launcher
from planner.runtime.running import shared_folder
from profiles.catalogue import device_type
from profiles.clusters import parse_short_form
from profiles.links import LinkSamples, measured_cluster
from profiles.measuring.exchange import LinksJob, PairSeconds, time_pairs

SIZES = (4096, 65_536, 524_288, 2**20, 2**22, 2**23)
"""Bytes: from a latency-bound message to activations of a large microbatch."""
DEFAULT_REPEATS = 20
MAX_RANKS = 16
"""Every pair is measured in turn: 120 pairs at 16."""
MAX_MESSAGE_BYTES = 2**30
TIMEOUT_S = 600.0

OnProgress = Callable[[int, int, str], None]


def measure_links(
    num_processes: int,
    *,
    sizes: Sequence[int] = SIZES,
    repeats: int = DEFAULT_REPEATS,
    timeout_s: float = TIMEOUT_S,
    on_progress: OnProgress | None = None,
) -> tuple[Cluster, tuple[LinkSamples, ...]]:
    """The cluster `local:num_processes` with measured links, and what was measured.

    Starts that many processes, each bound to a core, joined by gloo. InputError for bad arguments, RunError when a
    process fails; none outlives the call.
    """
    check_request(num_processes, sizes, repeats)
    known = parse_short_form(f"local:{num_processes}")
    pairs = num_processes * (num_processes - 1) // 2

    def tell(done: int, _: float) -> None:
        if on_progress is not None:
            on_progress(done, pairs, "pairs of processes")

    with shared_folder() as folder:
        job = LinksJob(
            num_ranks=num_processes,
            sizes=tuple(sorted(set(sizes))),
            repeats=repeats,
            timeout_s=timeout_s,
            folder=folder,
        )
        with Launcher(job) as launcher:
            found = launcher.results(tell)
    ids = [device.id for device in known.devices]
    samples = _samples(found, ids)
    node_of = dict.fromkeys(ids, "node0")
    name = f"local:{num_processes}, links measured"
    return measured_cluster(known.devices, known.device_types, samples, node_of=node_of, name=name), samples


def is_rank() -> bool:
    """Whether this process is one of a torchrun job."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def measure_links_as_rank(
    type_name: str, *, sizes: Sequence[int] = SIZES, repeats: int = DEFAULT_REPEATS
) -> tuple[Cluster, tuple[LinkSamples, ...]] | None:
    """The same within a torchrun job, which every rank calls: rank 0 gets the cluster, the others None.

    One device per rank, a GPU with NCCL where there are GPUs, else a process with gloo. Devices are called as in short
    forms: `gpu0`, or `node1/gpu0` where there are several hosts. Not tried on a GPU yet.
    """
    check_request(int(os.environ["WORLD_SIZE"]), sizes, repeats)
    kind = device_type(type_name)
    has_gpu = torch.cuda.is_available()
    place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if has_gpu else torch.device("cpu")
    if has_gpu:
        torch.cuda.set_device(place)
    dist.init_process_group("nccl" if has_gpu else "gloo", timeout=timedelta(seconds=TIMEOUT_S))
    try:
        found = time_pairs(sorted(set(sizes)), repeats, place)
        gathered: list[tuple[str, PairSeconds]] = [("", {})] * dist.get_world_size()
        dist.all_gather_object(gathered, (socket.gethostname(), found))
        is_first = dist.get_rank() == 0
    finally:
        dist.destroy_process_group()
    if not is_first:
        return None
    ids, nodes = device_ids([host for host, _ in gathered], "gpu" if has_gpu else "cpu")
    samples = _samples([pairs for _, pairs in gathered], ids)
    devices = [Device(id=i, type=kind.name) for i in ids]
    node_of = dict(zip(ids, nodes, strict=True))
    return measured_cluster(devices, [kind], samples, node_of=node_of, name="links measured"), samples


def check_request(num_ranks: int, sizes: Sequence[int], repeats: int) -> None:
    """InputError for a request that measures nothing, or too much."""
    if not 2 <= num_ranks <= MAX_RANKS:
        raise InputError(
            f"links between {num_ranks} processes: give 2 to {MAX_RANKS}; of more equal devices, measure some and "
            "write the others into the file"
        )
    if len(set(sizes)) < 2 or min(sizes) < 1 or max(sizes) > MAX_MESSAGE_BYTES:
        raise InputError(
            f"message sizes are {', '.join(map(str, sizes)) or 'none'}: give at least two, from 1 byte to 1 GiB"
        )
    if repeats < 1:
        raise InputError(f"repeats is {repeats}: send every message at least once")


def device_ids(hosts: Sequence[str], prefix: str) -> tuple[list[str], list[str]]:
    """Ids of the devices of ranks on these hosts, and their nodes, in the order of the ranks."""
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts))}
    seen = dict.fromkeys(numbers, 0)
    ids, nodes = [], []
    for host in hosts:
        node, own = f"node{numbers[host]}", f"{prefix}{seen[host]}"
        seen[host] += 1
        ids.append(f"{node}/{own}" if len(numbers) > 1 else own)
        nodes.append(node)
    return ids, nodes


def _samples(found: Sequence[PairSeconds], ids: Sequence[str]) -> tuple[LinkSamples, ...]:
    """What all ranks timed, in the order of the pairs."""
    joined = {pair: seconds for pairs in found for pair, seconds in pairs.items()}
    return tuple(LinkSamples(ids[a], ids[b], seconds) for (a, b), seconds in sorted(joined.items()))
