# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Chains of layers: gradients and kept bytes are those of the unpartitioned model; profiles are complete."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import BATCH_SIZE, CONFIGS, SEQUENCE_LENGTH

from planner.checks import check_graph
from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER, RunnableModel
from profiles.measuring import measure
from profiles.measuring.chain import LayerChain, Phase
from profiles.measuring.memory import KeptBytes, PeakBytes
from profiles.measuring.timing import WARM_UP_CHAINS, Timings, time_chains, time_optimizer
from profiles.tracing import TraceLoader, trace

WIDE = CONFIGS["gpt2"] | {"n_embd": 64}


def _without_parameters(batch_size):
    """Two activations."""
    model = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.ReLU())
    runnable = RunnableModel(
        name="bare", model=model, make_batch=lambda size, seed: ((torch.ones(size, 4),), torch.ones(size, 4)),
        loss=torch.nn.functional.mse_loss,
    )  # fmt: skip
    return trace(runnable, batch_size)


def test_a_model_that_trains_nothing_is_refused():
    with pytest.raises(InputError, match=r"model 'bare' depends on no trainable parameter.*requires_grad"):
        measure(_without_parameters, [1])


def _program(name, sequence_length=SEQUENCE_LENGTH):
    return TraceLoader(source=CONFIGS[name], sequence_length=sequence_length)(BATCH_SIZE)


def _bytes_kept_by_the_whole_model(program):
    excluded = (*program.runnable.model.parameters(), *program.runnable.model.buffers())
    seen, alive, total = {t.untyped_storage().data_ptr() for t in excluded}, [], [0]

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in seen:
            seen.add(tensor.untyped_storage().data_ptr())
            alive.append(tensor.detach())
            total[0] += tensor.untyped_storage().nbytes()
        return tensor

    inputs, target = program.runnable.make_batch(BATCH_SIZE, 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        program.runnable.loss(program.runnable.model(*inputs), target)
    return total[0]


@pytest.mark.parametrize("name", [n for n in CONFIGS if n != "t5"])
def test_kept_bytes_add_up_to_those_of_the_model(name):
    program = _program(name)
    chain = LayerChain(program)
    kept = KeptBytes(chain)
    chain.run(kept)
    constants = sum(t.untyped_storage().nbytes() for t in chain.constants.values())
    expected = _bytes_kept_by_the_whole_model(program)
    assert sum(kept.bytes_of.values()) == pytest.approx(expected, rel=0.01)
    assert 0 <= expected - sum(kept.bytes_of.values()) <= constants


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_of_the_model(name):
    program, whole = _program(name), _program(name)
    LayerChain(program).run(Timings())
    inputs, target = whole.runnable.make_batch(BATCH_SIZE, 0)
    whole.runnable.loss(whole.runnable.model(*inputs), target).backward()
    for (label, one), (_, two) in zip(
        program.runnable.model.named_parameters(), whole.runnable.model.named_parameters(), strict=True
    ):
        torch.testing.assert_close(one.grad, two.grad, rtol=0, atol=1e-6, msg=label)


def test_equal_blocks_keep_equal_bytes():
    chain = LayerChain(_program("gpt2"))
    kept, peak = KeptBytes(chain), PeakBytes()
    chain.run(kept)
    chain.run(peak)
    blocks = [layer for layer in chain.layer_ids if ".h." in layer]
    assert len({kept.bytes_of[block] for block in blocks}) == 1
    assert len({peak.bytes_of[block] for block in blocks}) == 1
    assert all(peak.bytes_of[block] > 0 for block in blocks)


def test_kept_bytes_of_a_linear_layer_are_its_input():
    from torch import nn

    from planner.runtime.program import RunnableModel
    from profiles.tracing import trace

    runnable = RunnableModel(
        name="two",
        model=nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)),
        make_batch=lambda size, seed: ((torch.ones(size, 4),), torch.zeros(size, 2)),
        loss=lambda output, target: (output - target).square().mean(),
    )
    chain = LayerChain(trace(runnable, 3))
    kept = KeptBytes(chain)
    chain.run(kept)
    assert kept.bytes_of["0"] == 3 * 4 * 4
    assert kept.bytes_of["1"] == 3 * 8 * 4


def test_the_order_of_a_chain():
    steps = []

    class Note:
        def __init__(self, step):
            self.step = step

        def __enter__(self):
            steps.append(self.step)

        def __exit__(self, *_):
            return None

    chain = LayerChain(_program("gpt2"))
    chain.run(lambda layer, phase: Note((layer, phase)))
    forward = [(layer, Phase.FORWARD) for layer in (*chain.layer_ids, LOSS_LAYER)]
    backward = [(layer, Phase.BACKWARD) for layer in (LOSS_LAYER, *reversed(chain.layer_ids))]
    assert steps == forward + backward


def test_medians_come_from_the_clock_after_the_warm_up():
    chain = LayerChain(_program("gpt2"))
    ticks = itertools.count()
    seconds = time_chains(chain, 5, lambda: None, clock=lambda: float(next(ticks)))
    assert seconds.median("transformer.h.0", Phase.FORWARD) == 1.0
    assert len(seconds.seconds["transformer.h.0", Phase.BACKWARD]) == 5
    assert next(ticks) == 2 * 2 * len((*chain.layer_ids, LOSS_LAYER)) * (WARM_UP_CHAINS + 5)


def test_drift_compares_the_halves():
    timings = Timings()
    timings.seconds["a", Phase.FORWARD].extend([1.0, 1.0, 1.0, 1.1, 1.1, 1.1])
    assert timings.drift() == pytest.approx(0.1)


def test_the_optimizer_leaves_the_weights():
    program = _program("gpt2")
    chain = LayerChain(program)
    chain.run(Timings())
    before = {name: p.clone() for name, p in program.module.named_parameters()}
    ticks = itertools.count()
    seconds = time_optimizer(chain, 5, clock=lambda: float(next(ticks)))
    assert seconds == dict.fromkeys(chain.layer_ids, 1.0)
    assert all(torch.equal(before[name], p) for name, p in program.module.named_parameters())


def test_a_measured_profile_is_complete_and_says_how_it_was_made():
    progress = []
    loader = TraceLoader(source=WIDE, sequence_length=SEQUENCE_LENGTH)
    threads = torch.get_num_threads()
    model = measure(loader, [2, 1, 2], on_progress=lambda done, total, text: progress.append((done, total, text)))
    (profile,) = model.profiles
    check_graph(model.graph)
    assert [table.microbatch_size for table in profile.tables] == [1, 2]
    small, big = (table.layers for table in profile.tables)
    assert set(small) == set(big) == {layer.id for layer in model.graph.layers}
    assert all(cost.forward_s > 0 and cost.backward_s > 0 for cost in big.values())
    for layer in (layer for layer in small if ".h." in layer):
        assert big[layer].activation_bytes == 2 * small[layer].activation_bytes
    assert big[LOSS_LAYER].optimizer_s == 0 < big["lm_head"].optimizer_s
    assert profile.dtype == "float32"
    assert "thread CPU time" in profile.provenance.method
    assert torch.__version__ in profile.provenance.tool
    assert progress[-1][0] == progress[-1][1] == len(progress)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("sizes", "repeats", "message"),
    [([], 5, "no microbatch size"), ([0], 5, "at least 1"), ([1], 2, "at least 5 chains")],
)
def test_bad_requests_are_refused(sizes, repeats, message):
    with pytest.raises(InputError, match=message):
        measure(TraceLoader(source=WIDE), sizes, repeats=repeats)
