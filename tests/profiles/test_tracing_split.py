# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Stage modules: groups of layers run alone, with the right names, parameters, gradients and errors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import CONFIGS, SEQUENCE_LENGTH

from planner.errors import InputError
from planner.runtime.split import constants_module, model_input_names, output_name, split_layers
from profiles.tracing import TraceLoader


def _program(name="llama"):
    return TraceLoader(source=CONFIGS[name], sequence_length=SEQUENCE_LENGTH)(2)


def _layers(program):
    return [layer.id for layer in program.graph.layers]


def test_two_stages_give_loss_and_gradients_of_the_model():
    program, whole = _program(), _program()
    layers = _layers(program)
    first, last = split_layers(program, [layers[:2], layers[2:]])
    inputs, target = program.runnable.make_batch(2, 0)
    sent = first(*inputs)
    received = [tensor.detach().requires_grad_() for tensor in sent]
    program.runnable.loss(last(*received)[0], target).backward()
    torch.autograd.backward(sent, [tensor.grad for tensor in received])
    whole.runnable.loss(whole.runnable.model(*inputs), target).backward()
    for name, parameter in whole.runnable.model.named_parameters():
        torch.testing.assert_close(program.module.get_parameter(name).grad, parameter.grad, rtol=0, atol=1e-6)


def test_names_of_inputs_and_outputs():
    program = _program()
    layers = _layers(program)
    first, last = split_layers(program, [layers[:2], layers[2:]])
    assert first.input_names == first.model_inputs == model_input_names(program)
    assert first.output_names == last.input_names
    assert last.model_inputs == ()
    assert last.output_names == (output_name(program),)
    assert (first.layer_ids, last.layer_ids) == (tuple(layers[:2]), tuple(layers[2:]))


def test_parameters_keep_their_names_and_identity():
    program = _program("gpt2")
    layers = _layers(program)
    stages = split_layers(program, [layers[:1], layers[1:3], layers[3:]])
    owned = [dict(stage.named_parameters()) for stage in stages]
    assert all(name.startswith(("transformer.h.0.", "transformer.h.1.")) for name in owned[1])
    assert owned[2]["lm_head.weight"] is owned[0]["transformer.wte.weight"]  # tied
    for parameters in owned:
        for name, parameter in parameters.items():
            assert parameter is program.runnable.model.get_parameter(name)


def test_constants_can_be_inputs_instead():
    program = _program()
    layers = _layers(program)
    inner = split_layers(program, [[layer] for layer in layers[:-1]])[1]
    outer = split_layers(program, [[layer] for layer in layers[:-1]], inline_constants=False)[1]
    constants = constants_module(program)
    assert constants.input_names == ()
    extra = set(outer.input_names) - set(inner.input_names)
    assert extra
    assert extra <= set(constants.output_names)
    values = dict(zip(constants.output_names, constants(), strict=True))
    values |= {name: torch.randn(2, SEQUENCE_LENGTH, 32) for name in inner.input_names}
    given = [values[name] for name in outer.input_names]
    assert torch.equal(outer(*given)[0], inner(*(values[name] for name in inner.input_names))[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda layers: [layers[:2]], "in no stage"),
        (lambda layers: [layers[:2], layers[1:]], "is in stages 0 and 1"),
        (lambda layers: [layers, ["loss"]], "stage 1 has no layer"),
        (lambda layers: [[*layers, "nonsense"]], "'nonsense'"),
    ],
)
def test_groups_that_are_no_partition_are_refused(change, message):
    program = _program()
    with pytest.raises(InputError, match=message):
        split_layers(program, change(_layers(program)))
