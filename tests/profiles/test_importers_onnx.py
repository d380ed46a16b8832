"""ONNX models: layers, FLOPs and bytes against closed forms, against torch, and what cannot be read is named."""

import math
import warnings
from dataclasses import replace

import pytest

from planner import codec
from planner.errors import InputError
from planner.workload import Training
from profiles.clusters import parse_cluster
from profiles.importers import IMPORTERS, ImportOptions, read_text
from profiles.importers.reading import read_path
from profiles.model import Grain, ModelRecord
from profiles.sources import build_problem, load_source

onnx = pytest.importorskip("onnx")
TensorProto, helper = onnx.TensorProto, onnx.helper
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
F4 = 4


def tensor(name, *shape, kind=FLOAT):
    """An initialiser of zeros, without data where it is large."""
    made = TensorProto(name=name, data_type=kind, dims=shape)
    width = {FLOAT: 4, INT64: 8, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2, TensorProto.INT8: 1}[kind]
    made.raw_data = bytes(width * math.prod(shape))
    return made


def value(name, *shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, weights, kind=FLOAT):
    """A model with one output, `y`."""
    output = helper.make_tensor_value_info("y", kind, None)
    graph = helper.make_graph(nodes, "net", list(inputs), [output], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def read(found, **options):
    content = found if isinstance(found, bytes) else found.SerializeToString()
    return IMPORTERS["onnx"].read_files({"net.onnx": content}, ImportOptions(**options))


def node(kind, inputs, output, name="", **attributes):
    return helper.make_node(kind, inputs.split(), output.split(), name=name or output, **attributes)


def perceptron(batch=1):
    """32 -> 64, ReLU, -> 10, with biases."""
    nodes = [
        node("Gemm", "x w1 b1", "h", transB=1),
        node("Relu", "h", "r"),
        node("MatMul", "r w2", "z"),
        node("Add", "z b2", "y"),
    ]
    weights = [tensor("w1", 64, 32), tensor("b1", 64), tensor("w2", 64, 10), tensor("b2", 10)]
    return model(nodes, [value("x", batch, 32)], weights)


def test_a_perceptron_has_two_layers_with_their_weights_and_flops():
    record = read(perceptron())
    assert [(layer.id, layer.op) for layer in record.graph.layers] == [("h", "Gemm+Relu"), ("z", "MatMul+Add")]
    assert [layer.parameter_bytes for layer in record.graph.layers] == [F4 * (64 * 32 + 64), F4 * (64 * 10 + 10)]
    assert [(edge.source, edge.target, edge.bytes_per_sample) for edge in record.graph.edges] == [("h", "z", F4 * 64)]
    first, second = record.work["h"], record.work["z"]
    assert (first.forward_flops, first.backward_flops) == (2 * 32 * 64, 4 * 32 * 64)
    assert second.forward_flops == 2 * 64 * 10
    assert first.forward_moved_bytes == 2 * F4 * 64  # ReLU reads and writes 64
    assert first.backward_moved_bytes == 3 * F4 * 64
    assert first.activation_bytes == F4 * (32 + 64)  # the input of the product, the output of ReLU
    assert second.activation_bytes == 0  # its input is kept already
    assert first.weight_bytes == F4 * (64 * 32 + 64)
    assert first.gradient_workspace_bytes == F4 * 64 * 32
    assert record.dtype == "float32"


@pytest.mark.parametrize("batch", ["batch", 1, 4])
def test_figures_are_those_of_one_sample(batch):
    record, single = read(perceptron(batch)), read(perceptron())
    assert record.work == single.work
    assert record.graph == single.graph
    assert any("4 samples at once" in note for note in record.provenance.notes) == (batch == 4)


def test_at_the_grain_of_operators_each_is_a_layer():
    record = read(perceptron(), grain=Grain.OPERATOR)
    assert [layer.op for layer in record.graph.layers] == ["Gemm", "Relu", "MatMul", "Add"]
    whole = read(perceptron())
    assert sum(w.forward_flops for w in record.work.values()) == sum(w.forward_flops for w in whole.work.values())
    assert sum(layer.parameter_bytes for layer in record.graph.layers) == F4 * (64 * 32 + 64 + 64 * 10 + 10)


def test_a_record_is_written_and_read_back():
    record = read(perceptron())
    assert codec.loads(ModelRecord, codec.dumps(record)) == record
    assert read_text(codec.dumps(record)) == record


def test_a_file_is_recognised_priced_and_planned(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(perceptron().SerializeToString())
    record = load_source(str(path))
    assert record == read(perceptron())
    assert read_path(tmp_path) == record
    problem = build_problem(record, parse_cluster("2xT4"), Training(global_batch_size=8))
    assert len(problem.index) == 2
    (tmp_path / "other.onnx").write_bytes(b"")
    with pytest.raises(InputError, match=r"there are 2 \.onnx files"):
        read_path(tmp_path)


@pytest.mark.parametrize(
    ("nodes", "inputs", "weights", "expected"),
    [
        (
            [node("Conv", "x w", "y", strides=[2, 2], pads=[1, 1, 1, 1], group=2)],
            [value("x", 1, 8, 16, 16)],
            [tensor("w", 6, 4, 3, 3)],
            2 * (6 * 8 * 8) * (4 * 9),
        ),
        (
            [node("ConvTranspose", "x w", "y")],
            [value("x", 1, 8, 5, 5)],
            [tensor("w", 8, 3, 2, 2)],
            2 * (8 * 25) * (3 * 4),
        ),
        ([node("Gemm", "x w", "y", transA=1)], [value("x", 1, 7)], [tensor("w", 1, 5)], 2 * 7 * 5),
        ([node("MatMul", "x w", "y")], [value("x", 1, 3, 4, 5)], [tensor("w", 5, 6)], 2 * 3 * 4 * 5 * 6),
        ([node("Einsum", "x w", "y", equation="bsd,df->bsf")], [value("x", 1, 3, 4)], [tensor("w", 4, 6)], 144),
        ([node("Einsum", "x w", "y", equation="...d,df->...f")], [value("x", 1, 3, 4)], [tensor("w", 4, 6)], 144),
        ([node("Einsum", "x", "y", equation="bij->bji")], [value("x", 1, 3, 4)], [], 0),
        (
            [node("LSTM", "x w r", "y", hidden_size=5)],
            [value("x", 7, 1, 3)],
            [tensor("w", 1, 20, 3), tensor("r", 1, 20, 5)],
            2 * 7 * (20 * 3 + 20 * 5) / 7,
        ),
    ],
)  # fmt: skip
def test_flops_of_products(nodes, inputs, weights, expected):
    record = read(model(nodes, inputs, weights))
    assert sum(work.forward_flops for work in record.work.values()) == expected


def block(sequence=8):
    """Attention with one head and a residual, h = 16; weights transposed by a node, shapes computed by nodes."""
    nodes = [
        node("Gather", "table ids", "e"),
        node("LayerNormalization", "e g", "n", axis=-1),
        node("MatMul", "n wq", "q"),
        node("Transpose", "wk", "wkt", perm=[1, 0]),
        node("MatMul", "n wkt", "k"),
        node("MatMul", "n wv", "v"),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "s"),
        node("Mul", "s scale", "m"),
        node("Softmax", "m", "p", axis=-1),
        node("MatMul", "p v", "a"),
        node("Shape", "a", "shape"),
        node("Reshape", "a shape", "ar"),
        node("Add", "e ar", "o"),
        node("Transpose", "table", "tt", perm=[1, 0]),
        node("MatMul", "o tt", "y"),
    ]
    weights = [tensor("table", 100, 16), tensor("g", 16), *(tensor(name, 16, 16) for name in ("wq", "wk", "wv"))]
    weights.append(tensor("scale"))
    return model(nodes, [value("ids", "batch", sequence, kind=INT64)], weights)


def test_a_block_of_attention_with_tied_embedding():
    record = read(block())
    ops = {layer.id: layer.op for layer in record.graph.layers}
    assert ops == {
        "e": "Gather+LayerNormalization", "q": "MatMul", "k": "MatMul+Transpose", "v": "MatMul",
        "s": "MatMul+Mul+Softmax", "a": "MatMul+Reshape", "o": "Add", "y": "MatMul",
    }  # fmt: skip
    s, h, v = 8, 16, 100
    assert sum(work.forward_flops for work in record.work.values()) == 2 * (3 * s * h * h + 2 * s * s * h + s * h * v)
    (tied,) = record.graph.tied
    assert (tied.layers, tied.parameter_bytes) == (("e", "y"), F4 * v * h)
    assert sum(layer.parameter_bytes for layer in record.graph.layers) == F4 * (2 * v * h + h + 3 * h * h)
    edges = {(edge.source, edge.target, edge.tensor): edge.bytes_per_sample for edge in record.graph.edges}
    assert edges["e", "q", "n"] == edges["e", "k", "n"] == edges["e", "v", "n"] == edges["e", "o", "e"] == F4 * s * h
    assert edges["k", "s", "k"] == F4 * s * h  # the transposed view is the tensor that it shows
    assert edges["s", "a", "p"] == F4 * s * s
    assert record.work["e"].weight_bytes == F4 * h  # the table is looked up, not read
    assert record.work["y"].weight_bytes == F4 * v * h
    assert {e.has_gradient for e in record.graph.edges} == {True}


def test_kept_tensors_are_counted_once():
    """ids, e (norm), n (three products), q and k, p (softmax), v, o (the head): what torch saves for these."""
    record = read(block())
    s, h = 8, 16
    kept = 8 * s + F4 * (s * h * 6 + s * s)
    assert sum(work.activation_bytes for work in record.work.values()) == kept


def test_open_lengths_are_asked_for():
    open_model = block(sequence="tokens")
    with pytest.raises(InputError, match="input 'ids' leaves its dimension 'tokens' open: say with --sequence-length"):
        read(open_model)
    record = read(open_model, sequence_length=8)
    assert replace(record, sequence_length=None, provenance=read(block()).provenance) == read(block())
    assert record.sequence_length == 8
    with pytest.raises(InputError, match="sequence length is 0"):
        read(open_model, sequence_length=0)


def test_types_and_quantised_weights():
    nodes = [node("DequantizeLinear", "w scale", "wf"), node("MatMul", "x wf", "y")]
    record = read(model(nodes, [value("x", 1, 32)], [tensor("w", 32, 8, kind=TensorProto.INT8), tensor("scale")]))
    assert record.graph.layers[0].parameter_bytes == 32 * 8
    assert record.dtype == "int8"
    half = [node("MatMul", "x w", "y")]
    kind = TensorProto.BFLOAT16
    record = read(model(half, [value("x", 1, 32, kind=kind)], [tensor("w", 32, 8, kind=kind)], kind))
    assert (record.dtype, record.graph.layers[0].parameter_bytes) == ("bfloat16", 2 * 32 * 8)


def test_external_data_is_not_opened():
    found = perceptron()
    weight = found.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="/does/not/exist")
    assert read(found).work == read(perceptron()).work


def test_local_functions_are_inlined():
    body = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 20)]
    )
    nodes = [node("MatMul", "x w", "h"), helper.make_node("Double", ["h"], ["y"], domain="own")]
    found = model(nodes, [value("x", 1, 4)], [tensor("w", 4, 4)])
    found.functions.append(body)
    found.opset_import.append(helper.make_opsetid("own", 1))
    assert [layer.op for layer in read(found).graph.layers] == ["MatMul+Add"]


def broken(change):
    found = perceptron()
    change(found.graph)
    return found


def _looped(graph):
    graph.node[0].input[0] = "r"


def _loop(graph):
    inner = helper.make_graph([helper.make_node("Identity", ["q"], ["p"])], "inner", [], [value("p", 1)])
    graph.node.append(helper.make_node("If", ["c"], ["d"], name="choice", then_branch=inner, else_branch=inner))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.ClearField("node"), "net.onnx holds no operators"),
        (_looped, "node 'h' .Gemm. reads 'r', which no input, initialiser or node before it gives"),
        (lambda g: g.node[2].input.__setitem__(0, "gone"), "node 'z' .MatMul. reads 'gone'"),
        (lambda g: g.node[1].output.__setitem__(0, "h"), "node 'r' .Relu. makes 'h' again"),
        (lambda g: g.initializer[0].dims.__setitem__(0, -3), "tensor 'w1' has a dimension of -3"),
        (lambda g: g.initializer[0].dims.__setitem__(0, 2**40), "tensor 'w1' has a dimension of 1099511627776"),
        (
            lambda g: setattr(g.initializer[0], "data_type", 8),
            "tensor 'w1' has the type STRING, which has no fixed size",
        ),
        (lambda g: setattr(g.initializer[0], "data_type", 99), "tensor 'w1' has the type 99"),
        (lambda g: setattr(g.node[1], "op_type", "Odd"), "node 'z' .MatMul.: the shape of 'r' cannot be inferred|Odd"),
        (lambda g: g.initializer[2].dims.__setitem__(0, 63), "cannot infer the shapes|cannot be inferred"),
        (_loop, "node 'choice' .If. holds a graph of its own"),
        (lambda g: g.sparse_initializer.add(), "sparse initialisers are not read"),
        (lambda g: setattr(g.input[0].type.tensor_type.shape.dim[1], "dim_value", -1), "'x' has a dimension of -1"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(InputError, match=message):
        read(broken(change))


def test_broken_bytes_are_named():
    content = perceptron().SerializeToString()
    for cut in (1, 10, len(content) // 2, len(content) - 1):
        with pytest.raises(InputError, match=r"net\.onnx"):
            read(content[:cut])
    with pytest.raises(InputError, match=r"net\.onnx"):
        read(b"hello")
    with pytest.raises(InputError, match="an ONNX model is no text"):
        read_text("x", format="onnx")


def test_huge_products_are_named():
    nodes = [node("MatMul", "x w", "h"), node("MatMul", "h v", "y")]
    size = 10**9
    weights = [TensorProto(name=name, data_type=FLOAT, dims=(size, size)) for name in ("w", "v")]
    with pytest.raises(InputError, match=r"bytes .limit"):
        read(model(nodes, [value("x", 1, size)], weights))


def test_an_exported_torch_model_has_its_parameters_and_flops(tmp_path):
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10)
    ).eval()
    net[1].running_mean.uniform_()  # the exporter joins equal tensors
    net[1].running_var.uniform_(1, 2)
    nn.init.uniform_(net[1].weight)
    nn.init.uniform_(net[1].bias)
    given = torch.randn(2, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (given,), tmp_path / "net.onnx", dynamo=False, do_constant_folding=False)
    record = read_path(tmp_path / "net.onnx")
    buffers = F4 * sum(b.numel() for b in net.buffers() if b.is_floating_point())
    stored = sum(layer.parameter_bytes for layer in record.graph.layers)
    assert stored == F4 * sum(p.numel() for p in net.parameters()) + buffers
    with FlopCounterMode(display=False) as counter:
        net(given)
    assert sum(work.forward_flops for work in record.work.values()) == counter.get_total_flops() / 2


def test_flops_and_kept_bytes_of_blocks_are_those_of_torch(tmp_path):
    """Two blocks with attention: FLOPs of both passes equal what torch counts, kept bytes are its saved tensors
    but for the two numbers per row of each norm (under 1 %)."""
    torch = pytest.importorskip("torch")
    from torch import nn
    from torch.utils.flop_counter import FlopCounterMode

    class Block(nn.Module):
        def __init__(self, h=32):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(h), nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
            self.query, self.key, self.value, self.out = (nn.Linear(h, h) for _ in range(4))

        def forward(self, x):
            n = self.norm(x)
            weights = torch.softmax(self.query(n) @ self.key(n).transpose(1, 2) * 0.2, -1)
            x = x + self.out(weights @ self.value(n))
            return x + self.down(torch.relu(self.up(x)))

    net, given, saved = nn.Sequential(Block(), Block()), torch.randn(2, 8, 32, requires_grad=True), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (given,), tmp_path / "net.onnx", dynamo=False)
    parameters = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def note(saved_tensor):
        storage = saved_tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
        return saved_tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t), FlopCounterMode(display=False) as counter:
        loss = net(given).sum()
        forward = counter.get_total_flops()
        loss.backward()
    record = read_path(tmp_path / "net.onnx")
    assert sum(work.forward_flops for work in record.work.values()) == forward / 2
    assert sum(work.backward_flops for work in record.work.values()) == (counter.get_total_flops() - forward) / 2
    kept = sum(work.activation_bytes for work in record.work.values())
    assert kept == pytest.approx(sum(saved.values()) / 2, rel=0.01)
