"""`record`: a traced model's work without seconds, so that `profiles.analytic` can price it for any device."""

from __future__ import annotations

import datetime
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.profile import Provenance
from planner.runtime.program import LOSS_LAYER, RunnableModel, TracedProgram
from profiles.measuring.chain import LayerChain, Observer, Phase
from profiles.measuring.fused import fuse_unequal_heads
from profiles.measuring.memory import KeptBytes, Makers, PeakBytes, WeightPassBytes, whole_bytes
from profiles.measuring.placing import on_device
from profiles.measuring.work import WorkMeter
from profiles.model import LayerWork, ModelRecord
from profiles.tracing.grouped import run_on_fakes
from profiles.tracing.grouping import attribute


def record(
    program: TracedProgram,
    *,
    name: str | None = None,
    dtype: str = "bfloat16",
    sequence_length: int | None = None,
    notes: tuple[str, ...] = (),
) -> ModelRecord:
    """FLOPs, moved, weight and kept bytes of every layer, per sample.

    The program is run forward and backward on fake tensors, and once more with a split backward pass: no memory, no
    arithmetic, whatever the model's size and device; trace it with batch size 1. Kept bytes are what autograd saves
    with fused attention (no s x s matrix). FLOPs follow torch's formulas, with causal attention at half of the score
    matrix. `dtype` is that of the parameters (`float32` etc.).
    """
    with FakeTensorMode(allow_non_fake_inputs=False):
        makers, fake = Makers(), _fake(program)
        chain = LayerChain(fake, watcher=makers)
        meter, kept, peak, late = WorkMeter(chain), KeptBytes(chain, makers), PeakBytes(), WeightPassBytes()
        chain.run(_Fresh(chain, meter, kept, peak))
        LayerChain(fake).run(late, split=True)
    return ModelRecord(
        name=name or program.runnable.name,
        dtype=dtype,
        sequence_length=sequence_length,
        graph=program.graph,
        work={
            layer: _work(program, chain, layer, meter, kept, peak.bytes_of[layer], late.bytes_of.get(layer))
            for layer in (*chain.layer_ids, LOSS_LAYER)
        },
        provenance=Provenance(
            method="recorded: operators of one forward and backward pass on fake tensors",
            tool=f"torch {torch.__version__}",
            created=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
            notes=notes,
        ),
    )


class _Fresh:
    """Several observers at once; every backward step finds no gradients.

    Their addition is then neither moved bytes nor workspace: it happens once per microbatch whatever its size, and
    pricing adds it.
    """

    def __init__(self, chain: LayerChain, *observers: Observer) -> None:
        self._parameters = list(chain.program.module.parameters())
        self._observers = observers

    def __call__(self, layer: str, phase: Phase) -> AbstractContextManager[object]:
        for parameter in self._parameters:
            parameter.grad = None
        stack = ExitStack()
        for observer in self._observers:
            stack.enter_context(observer(layer, phase))
        return stack


def _work(
    program: TracedProgram,
    chain: LayerChain,
    layer: str,
    meter: WorkMeter,
    kept: KeptBytes,
    workspace: int,
    weight_pass: int | None,
) -> LayerWork:
    size = program.batch_size
    weights = {one.id: one.parameter_bytes for one in program.graph.layers}
    held = program.held_output_bytes(layer)
    parameters = chain.parameters(layer) if layer != LOSS_LAYER else []
    return LayerWork(
        forward_flops=meter.flops[layer, Phase.FORWARD] / size,
        backward_flops=meter.flops[layer, Phase.BACKWARD] / size,
        forward_moved_bytes=meter.moved_bytes[layer, Phase.FORWARD] / size,
        backward_moved_bytes=meter.moved_bytes[layer, Phase.BACKWARD] / size,
        weight_bytes=weights[layer],
        activation_bytes=-(-(kept.bytes_of[layer] + held) // size),
        workspace_bytes=-(-(workspace + held) // size),
        gradient_workspace_bytes=max((p.numel() * p.element_size() for p in parameters), default=0),
        sequence_activation_bytes=whole_bytes(kept, program, layer) // size,
        weight_pass_bytes=None if weight_pass is None else -(-weight_pass // size),
    )


def _fake(program: TracedProgram) -> TracedProgram:
    """The program on fake CPU tensors (to be called and used inside a FakeTensorMode)."""
    module = fx.GraphModule(program.module, _on_cpu(program.module.graph), class_name="Fake")
    made: dict[int, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            old = attribute(module, node)
            new = made.setdefault(id(old), _fake_attribute(old))
            made.setdefault(id(new), new)
            _set_attribute(module, str(node.target), new)
    return replace(program, module=module, runnable=_fake_batches(program.runnable))


def _on_cpu(graph: fx.Graph) -> fx.Graph:
    """A copy in which operators that make tensors make them on the CPU (they say `meta` after a meta trace).

    Rows per expert are counted in whole numbers on `meta`; CPUs can count in floating point only.
    """
    copy = on_device(graph, torch.device("cpu"))
    run_on_fakes(copy)
    fuse_unequal_heads(copy)
    for node in copy.nodes:
        if node.target is torch.ops.aten.histc.default and node.args[0].target is torch.ops.aten.to.dtype:
            node.args[0].update_arg(1, torch.float32)
    return copy


def _fake_attribute(old: torch.Tensor) -> torch.Tensor:
    new = torch.empty(old.shape, dtype=old.dtype, device="cpu")
    return nn.Parameter(new, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else new


def _set_attribute(module: fx.GraphModule, path: str, value: torch.Tensor) -> None:
    owner, _, name = path.rpartition(".")
    holder = module.get_submodule(owner)
    store = holder._parameters if name in holder._parameters else holder._buffers
    store[name] = value  # type: ignore[assignment]


def _fake_batches(runnable: RunnableModel) -> RunnableModel:
    def make_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
        inputs, target = runnable.make_batch(batch_size, seed)
        return tuple(_fake_attribute(t) for t in inputs), _fake_attribute(target)

    return replace(runnable, make_batch=make_batch)
