"""Chrome traces of torch.profiler: seconds and bytes from the raw events, and the rule of whose work is whose."""

import gzip
import json
from pathlib import Path

import pytest

from planner import codec
from planner.errors import InputError
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.reading import read_path
from profiles.model import Grain, ProfiledModel

FILE = Path(__file__).parents[1] / "instances" / "kineto" / "three_layers.json"
AUTOGRAD = "autograd::engine::evaluate_function: "


def span(name, start, duration, cat="cpu_op", tid=1, **args):
    """A complete event; underscores in the names of arguments stand for spaces."""
    args = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start, "dur": duration, "args": args}


def note(name, start, duration, **more):
    return span(name, start, duration, cat="user_annotation", **more)


def read(events, **options):
    return read_text(json.dumps({"traceEvents": events}), options=ImportOptions(**options))


def seconds(model):
    """Layer -> microseconds of forward and backward."""
    costs = model.profiles[0].tables[0].layers
    return {name: (round(c.forward_s * 1e6, 6), round(c.backward_s * 1e6, 6)) for name, c in costs.items()}


STEP = [
    note("a", 0, 10),
    span("aten::linear", 1, 4, Sequence_number=5),
    span("aten::addmm", 2, 2, Sequence_number=6),
    span("aten::relu", 6, 3, Sequence_number=7),
    note("b", 20, 10),
    span("aten::mm", 21, 8, Sequence_number=8),
    span("aten::sum", 31, 2, Sequence_number=9),
    span(AUTOGRAD + "SumBackward0", 40, 1, Sequence_number=9, tid=2),
    span(AUTOGRAD + "MmBackward0", 42, 16, Sequence_number=8, tid=2),
    span(AUTOGRAD + "torch::autograd::AccumulateGrad", 60, 1, tid=2),
    span(AUTOGRAD + "ReluBackward0", 62, 2, Sequence_number=7, tid=2),
    span(AUTOGRAD + "AddmmBackward0", 65, 5, Sequence_number=6, tid=2),
    span("aten::clip", 72, 3),
    note("Optimizer.step#SGD.step", 80, 10),
    span("aten::add_", 82, 6),
]


def brute_force(raw):
    """Per layer forward and backward microseconds, by comparing every event with every other."""
    ops = [e for e in raw if e.get("ph") == "X" and e.get("cat") == "cpu_op"]
    marks = [e for e in raw if e.get("cat") == "user_annotation"]

    def holds(outer, inner):
        same = outer["tid"] == inner["tid"] and outer is not inner
        return same and outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]

    tops = sorted((e for e in ops if not any(holds(o, e) for o in ops)), key=lambda e: e["ts"])
    forward, backward, owner, last = {}, {}, {}, None
    for op in tops:
        if op["name"].startswith(AUTOGRAD):
            last = owner.get(op["args"].get("Sequence number"), last)
            backward[last] = backward.get(last, 0) + op["dur"]
            continue
        inside = [m["name"] for m in marks if holds(m, op)]
        ended = [m for m in marks if m["ts"] <= op["ts"]]
        name = inside[0] if inside else "after " + max(ended, key=lambda m: m["ts"])["name"]
        for each in [op, *(o for o in ops if holds(op, o))]:
            if "Sequence number" in each["args"]:
                owner[each["args"]["Sequence number"]] = name
        if name.startswith("after") and name not in owner.values():
            continue
        forward[name] = forward.get(name, 0) + op["dur"]
    return forward, backward


def test_a_recorded_trace_comes_through():
    """Three layers, two microbatches of 16: 32 -> 64, 64 -> 64, 64 -> 10, then the loss."""
    model = read_text(FILE.read_text(), options=ImportOptions(minibatch_size=16))
    assert [layer.id for layer in model.graph.layers] == ["layer0", "layer1", "layer2", "after layer2"]
    counts = [4 * (32 * 64 + 64), 4 * (64 * 64 + 64), 4 * (64 * 10 + 10), 0]
    assert [layer.parameter_bytes for layer in model.graph.layers] == counts
    assert [edge.bytes_per_sample for edge in model.graph.edges] == [4 * 64, 4 * 64, 4 * 10]
    costs = model.profiles[0].tables[0].layers
    kept = [costs[layer.id].activation_bytes for layer in model.graph.layers]
    assert kept[:3] == [16 * 64 * 4, 16 * 64 * 4, 16 * 10 * 4]
    forward, backward = brute_force(json.loads(FILE.read_text())["traceEvents"])
    for name in ("layer0", "layer1", "layer2"):
        assert costs[name].forward_s == pytest.approx(forward[name] / 2 / 1e6)
        assert costs[name].backward_s == pytest.approx(backward[name] / 2 / 1e6)
    assert "2 microbatch(es) of 16 sample(s)" in model.profiles[0].provenance.notes[0]
    assert codec.loads(ProfiledModel, codec.dumps(model)) == model
    assert read_text(codec.dumps(model)) == model


def test_a_packed_trace_is_unpacked(tmp_path):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(FILE.read_bytes()))
    assert read_path(path) == read_text(FILE.read_text())
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match="is no whole gzip file"):
        read_path(path)


def test_operators_belong_to_annotations_and_autograd_nodes_to_their_operators():
    model = read(STEP)
    assert seconds(model) == {"a": (7, 7), "b": (8, 17), "after b": (2, 1)}
    notes = model.profiles[0].provenance.notes
    assert "left out: 6e-06 s of the optimizer, since no layer's parameters are known" in notes
    assert "left out: 3e-06 s of work that is no layer's" in notes
    assert any("record_shapes" in text for text in notes)
    assert any("profile_memory" in text for text in notes)


def test_all_of_the_work_is_counted_once():
    raw = [e for e in STEP if e["cat"] == "cpu_op" and e["name"] not in ("aten::addmm", "aten::clip", "aten::add_")]
    total = sum(forward + backward for forward, backward in seconds(read(STEP)).values())
    assert total == sum(event["dur"] for event in raw)


def test_work_between_annotations_is_a_layer_of_its_own():
    events = [span("aten::copy_", 0, 5), note("a", 10, 5), span("aten::mm", 11, 2), span("aten::view", 16, 1)]
    events += [note("b", 20, 5), span("aten::mm", 21, 3)]
    assert seconds(read(events)) == {"before a": (5, 0), "a": (2, 0), "after a": (1, 0), "b": (3, 0)}


def test_one_annotation_around_all_is_looked_into():
    """`backward` holds an operator that is no autograd node, as `Tensor.backward` does."""
    around = [note("step", 0, 100), note("forward", 0, 35), note("backward", 38, 40)]
    assert seconds(read([*around, *STEP])) == seconds(read(STEP))


def test_a_finer_grain_takes_the_innermost():
    events = [note("block0", 0, 20), note("attn", 1, 8), span("aten::mm", 2, 5), note("mlp", 10, 9)]
    events += [span("aten::mm", 11, 7), note("block1", 30, 9), span("aten::mm", 31, 6)]
    assert seconds(read(events)) == {"block0": (12, 0), "block1": (6, 0)}
    assert seconds(read(events, grain=Grain.OPERATOR)) == {"attn": (5, 0), "mlp": (7, 0), "block1": (6, 0)}


def test_modules_stand_in_for_annotations():
    kind = "python_function"
    events = [span("nn.Module: Net_0", 0, 50, cat=kind), span("nn.Module: Linear_0", 1, 10, cat=kind)]
    events += [span("aten::linear", 2, 4), span("nn.Module: Linear_1", 20, 10, cat=kind), span("aten::linear", 22, 6)]
    events += [span("some.py(3): f", 21, 8, cat=kind)]
    assert seconds(read(events)) == {"Linear_0": (4, 0), "Linear_1": (6, 0)}


def test_without_either_every_operator_is_a_layer():
    events = [e for e in STEP if e["cat"] != "user_annotation" and e["name"] not in ("aten::clip", "aten::add_")]
    found = seconds(read(events))
    assert found == {"aten::linear#0": (4, 5), "aten::relu#1": (3, 2), "aten::mm#2": (8, 17), "aten::sum#3": (2, 1)}


def test_microbatches_are_averaged():
    later = [e | {"ts": e["ts"] + 1000, "args": {k: v + 100 for k, v in e["args"].items()}} for e in STEP[:12]]
    assert seconds(read(STEP[:12] + later)) == seconds(read(STEP))


def test_a_layer_that_runs_twice_per_microbatch_counts_twice():
    events = [note("a", 0, 5), span("aten::mm", 1, 2), note("b", 10, 5), span("aten::mm", 11, 3)]
    events += [note("a", 20, 5), span("aten::mm", 21, 4)]
    assert seconds(read(events)) == {"a": (6, 0), "b": (3, 0)}


def test_recomputed_operators_are_backward_work():
    events = [*STEP[:12], note("b", 43, 10, tid=2), span("aten::mm", 44, 8, tid=2, Sequence_number=99)]
    assert seconds(read(events)) == seconds(read(STEP))


def test_the_last_step_is_read():
    first = [note("ProfilerStep#3", -0.0, 100), *STEP]
    second = [e | {"ts": e["ts"] + 200} for e in STEP[:3]]
    model = read([*first, note("ProfilerStep#4", 200, 100), *second])
    assert seconds(model) == {"a": (4, 0)}


DEVICE_STEP = [
    note("a", 0, 10),
    span("aten::mm", 1, 4, Sequence_number=1, External_id=11),
    span("cudaLaunchKernel", 2, 1, cat="cuda_runtime", correlation=101),
    span("gemm", 500, 70, cat="kernel", tid=7, correlation=101),
    span("aten::copy_", 6, 2, External_id=12),
    span("Memcpy DtoD", 600, 30, cat="gpu_memcpy", tid=7, External_id=12),
    span(AUTOGRAD + "MmBackward0", 20, 9, tid=2, Sequence_number=1),
    span("cuLaunchKernel", 22, 1, cat="cuda_driver", tid=2, correlation=102),
    span("gemm_backward", 700, 140, cat="kernel", tid=7, correlation=102),
    span("ncclDevKernel_AllReduce", 900, 1000, cat="kernel", tid=8, correlation=103),
    span("lost", 2000, 5, cat="kernel", tid=7, correlation=999),
]


def test_on_a_device_the_kernels_count():
    model = read(DEVICE_STEP, device_type="H100-80G-SXM")
    assert seconds(model) == {"a": (100, 140)}
    assert model.profiles[0].device_type == "H100-80G-SXM"
    notes = model.profiles[0].provenance.notes
    assert "left out: 0.001 s of collectives, which are priced by the cluster's links" in notes
    assert "left out: 5e-06 s of work that is no layer's" in notes
    assert "kernels and copies on the device" in notes[0]


def test_parameters_share_the_optimizer():
    grad = {"Input_Dims": [[3, 5]], "Input_type": ["c10::BFloat16"]}
    events = [*STEP, span("torch::autograd::AccumulateGrad", 60.2, 0.5, tid=2, **grad)]
    model = read(events)
    assert {layer.id: layer.parameter_bytes for layer in model.graph.layers} == {"a": 0, "b": 30, "after b": 0}
    assert model.profiles[0].dtype == "bfloat16"
    assert model.profiles[0].tables[0].layers["b"].optimizer_s == pytest.approx(6e-6)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([], "the trace holds no forward operators"),
        ([note("a", 0, 5)], "the trace holds no forward operators"),
        (
            [span("aten::mm", 0, 1) | {"dur": -1}],
            r"event 0 \('aten::mm'\): dur is '-1': it must be microseconds between",
        ),
        ([span("aten::mm", 0, 1) | {"dur": None}], r"event 0 \('aten::mm'\): dur is 'None'"),
        ([span("aten::mm", 0, 1), span("x", float("nan"), 1)], r"event 1 \('x'\): ts is 'nan'"),
        ([span("aten::mm", 0, 1) | {"ts": "0"}], r"event 0 \('aten::mm'\): ts is '0'"),
        ([span("aten::mm", 0, 1) | {"ts": 1e300}], "ts is '1e[+]300'"),
        ([span("aten::mm", 0, 1) | {"name": 3}], "event 0: name is '3': it must be text"),
        ([span("aten::mm", 0, 1) | {"cat": []}], "event 0: cat is"),
        ([note("x" * 600, 0, 5), span("aten::mm", 1, 1)], "an annotation has 600 characters"),
        ([span("aten::mm", i / 8, 1000 - i) for i in range(600)], "lies in 500 other events"),
    ],
)
def test_what_is_wrong_is_named(events, message):
    with pytest.raises(InputError, match=message):
        read(events)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"traceEvents": 3}', "a Chrome trace is a JSON object with a list"),
        ('{"traceEvents": [', "the trace is not valid JSON"),
        ("[" * 100_000, "nested too deep|not valid JSON"),
        ("7", "a Chrome trace is a JSON object"),
    ],
)
def test_bad_text_is_named(text, message):
    with pytest.raises(InputError, match=message):
        read_text(text, format="kineto")


def test_a_minibatch_of_nothing_is_refused():
    with pytest.raises(InputError, match="minibatch size is 0"):
        read(STEP, minibatch_size=0)


def test_a_bare_list_of_events_is_a_trace():
    text = json.dumps(STEP)
    assert IMPORTERS["kineto"].sniff(text.encode())
    assert seconds(read_text(text)) == seconds(read(STEP))
