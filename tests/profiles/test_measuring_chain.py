# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Chains of layers: gradients and kept bytes are those of the unpartitioned model; profiles are complete."""

from __future__ import annotations

import itertools
import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import BATCH_SIZE, CONFIGS, SEQUENCE_LENGTH

from planner import codec
from planner.checks import check_graph
from planner.errors import InputError
from planner.runtime.program import LOSS_LAYER, RunnableModel
from profiles.measuring import measure
from profiles.measuring.chain import LayerChain, Phase
from profiles.measuring.measure import DEFAULT_REPEATS
from profiles.measuring.memory import KeptBytes, PeakBytes
from profiles.measuring.placing import device_of, placed
from profiles.measuring.stopwatch import CpuStopwatch, CudaStopwatch
from profiles.measuring.timing import WARM_UP_CHAINS, Timings, drift, spread, time_chains, time_optimizer
from profiles.model import ProfiledModel
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


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_gradients_are_those_of_the_model(name, split):
    program, whole = _program(name), _program(name)
    LayerChain(program).run(Timings(CpuStopwatch()), split=split)
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


def _perceptron(batch_size):
    """Three products and a norm; ReLU and Tanh in the layers between."""
    from torch import nn

    layers = (nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 5), nn.LayerNorm(5))
    runnable = RunnableModel(
        name="perceptron", model=nn.Sequential(*layers),
        make_batch=lambda size, seed: ((torch.ones(size, 6),), torch.ones(size, 5)),
        loss=torch.nn.functional.mse_loss,
    )  # fmt: skip
    return trace(runnable, batch_size)


def test_gradients_of_weighted_outputs_wait_for_the_weight_pass():
    """Three samples of 7, 5 and 5 floats: gradients of the outputs of two products and the norm. That of Tanh's output,
    which no weight needs, is let go. The first layer has no input gradient, the loss no weights.
    """
    (profile,) = measure(_perceptron, [3], repeats=5).profiles
    held = {layer: cost.weight_pass_bytes for layer, cost in profile.tables[0].layers.items()}
    assert held == {"0": None, "2": 3 * 7 * 4, "4": 3 * 5 * 4, "5": 3 * 5 * 4, LOSS_LAYER: None}


def test_an_older_profile_knows_nothing_of_the_weight_pass():
    made = measure(_perceptron, [3], repeats=5)
    assert codec.loads(ProfiledModel, codec.dumps(made)) == made
    written = json.loads(codec.dumps(made))
    for cost in written["profiles"][0]["tables"][0]["layers"].values():
        del cost["weight_pass_bytes"]
    (old,) = codec.loads(ProfiledModel, json.dumps(written)).profiles
    assert {cost.weight_pass_bytes for cost in old.tables[0].layers.values()} == {None}


def _steps_of_a_chain(chain, *, split):
    steps = []

    class Note:
        def __init__(self, step):
            self.step = step

        def __enter__(self):
            steps.append(self.step)

        def __exit__(self, *_):
            return None

    chain.run(lambda layer, phase: Note((layer, phase)), split=split)
    return steps


def test_the_order_of_a_chain():
    chain = LayerChain(_program("gpt2"))
    forward = [(layer, Phase.FORWARD) for layer in (*chain.layer_ids, LOSS_LAYER)]
    backward = [(layer, Phase.BACKWARD) for layer in (LOSS_LAYER, *reversed(chain.layer_ids))]
    assert _steps_of_a_chain(chain, split=False) == forward + backward


def test_the_order_of_a_split_chain():
    """The first layer has no input gradient: its whole backward pass comes late."""
    chain = LayerChain(_program("gpt2"))
    forward = [(layer, Phase.FORWARD) for layer in (*chain.layer_ids, LOSS_LAYER)]
    inputs = [(layer, Phase.BACKWARD_INPUT) for layer in reversed(chain.layer_ids[1:])]
    weights = [(layer, Phase.BACKWARD_WEIGHT) for layer in reversed(chain.layer_ids)]
    assert _steps_of_a_chain(chain, split=True) == [*forward, (LOSS_LAYER, Phase.BACKWARD), *inputs, *weights]


def _ticking():
    ticks = itertools.count()
    return CpuStopwatch(clock=lambda: float(next(ticks)))


def test_medians_come_from_the_clock_after_the_warm_up():
    chain, chains = LayerChain(_program("gpt2")), []
    measured = time_chains(chain, 8, _ticking(), lambda: chains.append(1))
    timings, block = measured.timings, "transformer.h.0"
    assert timings.median(block, Phase.FORWARD) == 1.0
    assert {phase: len(timings.seconds(block, phase)) for phase in Phase} == {
        Phase.FORWARD: 8, Phase.BACKWARD: 8, Phase.BACKWARD_INPUT: 2, Phase.BACKWARD_WEIGHT: 2,
    }  # fmt: skip
    assert measured.reference_s == [1.0] * 8
    assert timings.chains() == [2.0 * len((*chain.layer_ids, LOSS_LAYER))] * 8
    assert measured.drift() == timings.spread(block) == 0
    assert len(chains) == WARM_UP_CHAINS + 8


def test_drift_compares_the_halves():
    assert drift([1.0, 1.0, 1.0, 1.1, 1.1, 1.1]) == pytest.approx(0.1)
    assert drift([1.1, 1.1, 1.0, 1.0]) == pytest.approx(1 / 11)
    assert drift([0.0, 0.0]) == drift([]) == 0


def test_spread_is_the_distance_of_the_quartiles():
    assert spread([8.0, 9.0, 10.0, 11.0, 12.0]) == pytest.approx(0.2)
    assert spread([5.0]) == spread([]) == 0


def test_a_gpu_is_timed_by_events_in_its_stream(monkeypatch):
    """Marks record without waiting; seconds wait for the second event and are milliseconds of torch over 1000."""
    journal = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            self.number = len(journal)

        def record(self, stream):
            journal.append(("record", self.number, stream))

        def synchronize(self):
            journal.append(("wait", self.number))

        def elapsed_time(self, end):
            return 7.0 * (end.number - self.number)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    stopwatch = CudaStopwatch(torch.device("cuda:1"))
    start, end = stopwatch.mark(), stopwatch.mark()
    assert journal == [("record", 0, "stream of cuda:1"), ("record", 1, "stream of cuda:1")]
    assert stopwatch.seconds(start, end) == pytest.approx(0.007)
    assert journal[2:] == [("wait", 1)]


@pytest.mark.parametrize(
    ("name", "words"),
    [("cuda:99", "torch sees 0 GPUs"), ("meta", "measured on cpu and cuda"), ("tpu", "is no device of torch")],
)
def test_devices_that_cannot_be_measured_are_refused(name, words, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(InputError, match=words):
        device_of(name)


def test_a_placed_program_has_everything_on_the_device():
    """`meta` stands for a GPU here: every tensor and every operator that makes one must have moved."""
    program = placed(_program("llama"), torch.device("meta"))
    chain, seen = LayerChain(program), set()
    chain.run(lambda layer, phase: Timings(_ticking())(layer, phase))
    inputs, target = program.runnable.make_batch(BATCH_SIZE, 0)
    for tensor in (*program.module.parameters(), *program.module.buffers(), *chain.constants.values(), *inputs, target):
        seen.add(tensor.device.type)
    assert seen == {"meta"}
    assert all(parameter.grad is not None for parameter in program.module.parameters())


def test_the_optimizer_leaves_the_weights():
    program = _program("gpt2")
    chain = LayerChain(program)
    chain.run(Timings(CpuStopwatch()))
    before = {name: p.clone() for name, p in program.module.named_parameters()}
    seconds = time_optimizer(chain, 5, _ticking())
    assert seconds == dict.fromkeys(chain.layer_ids, 1.0)
    assert all(torch.equal(before[name], p) for name, p in program.module.named_parameters())


def test_a_measured_profile_is_complete_and_says_how_it_was_made():
    progress = []
    loader = TraceLoader(source=WIDE, sequence_length=SEQUENCE_LENGTH)
    threads = torch.get_num_threads()
    model = measure(
        loader,
        [2, 1, 2],
        environment={"core": "1"},
        on_progress=lambda done, total, text: progress.append((done, total, text)),
    )
    (profile,) = model.profiles
    check_graph(model.graph)
    assert [table.microbatch_size for table in profile.tables] == [1, 2]
    small, big = (table.layers for table in profile.tables)
    assert set(small) == set(big) == {layer.id for layer in model.graph.layers}
    assert all(cost.forward_s > 0 and cost.backward_s > 0 for cost in big.values())
    for layer in (layer for layer in small if ".h." in layer):
        assert big[layer].activation_bytes == 2 * small[layer].activation_bytes
    assert big[LOSS_LAYER].optimizer_s == 0 < big["lm_head"].optimizer_s
    assert big["transformer.wte"].backward_input_s == big[LOSS_LAYER].optimizer_s == 0
    assert big["transformer.h.0"].backward_input_s > 0 < big["transformer.h.0"].backward_weight_s
    assert big[LOSS_LAYER].backward_input_s is None
    for table in profile.tables:
        assert table.measurement.num_chains == DEFAULT_REPEATS
        assert table.measurement.reference_s > 0
        assert set(table.measurement.spread) == set(table.layers)
    assert profile.provenance.environment == {"threads": "1", "core": "1"}
    assert codec.loads(ProfiledModel, codec.dumps(model)) == model
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
