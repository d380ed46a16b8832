# ruff: noqa: E402 - torch is optional: imports follow importorskip
"""Kept bytes per layer are what an ordinary forward pass of the whole model keeps, block by block.

The other measurement knows neither traces nor chains: it hangs hooks on the blocks of the untraced model and counts
every storage that autograd saves once, for the block that runs when it is first saved; parameters and buffers are not
counted. What a block saves that another one made (its input) counts for the layer that saves it first, in both.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from benchmarks.small_models import MODELS
from profiles.measuring.chain import LayerChain
from profiles.measuring.memory import KeptBytes
from profiles.tracing import TraceLoader

NAMES = (
    "gpt2", "llama", "qwen2", "mixtral", "deepseek_v3", "mamba2", "bert", "distilbert", "bart", "vit", "swin",
    "convnext", "wav2vec2", "clip",
)  # fmt: skip
WIDER = {"hidden_size": 128, "num_attention_heads": 16, "intermediate_size": 256}
"""Rotary tables are constants, in no layer; a block as narrow as the others would keep 1.4 % of them."""
BATCH_SIZE = 2
TOLERANCE = 0.01


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _kept_by_an_ordinary_pass(runnable, blocks: set[str], excluded: set[int]) -> dict[str, int]:
    """Block -> bytes that autograd saves first while it runs ("" outside of blocks)."""
    kept, alive, running = defaultdict(int), [], [""]

    def pack(tensor):
        if _key(tensor) not in excluded:
            excluded.add(_key(tensor))
            alive.append(tensor.detach())
            kept[running[-1]] += tensor.untyped_storage().nbytes()
        return tensor

    hooks = []
    for name in blocks:
        module = runnable.model.get_submodule(name)
        hooks.append(module.register_forward_pre_hook(lambda *_, name=name: running.append(name)))
        hooks.append(module.register_forward_hook(lambda *_: running.pop() and None))
    inputs, target = runnable.make_batch(BATCH_SIZE, 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        runnable.loss(runnable.model(*inputs), target)
    for hook in hooks:
        hook.remove()
    return kept


@pytest.mark.parametrize("name", NAMES)
def test_kept_bytes_are_those_of_an_ordinary_forward_pass(name):
    entry = MODELS[name]
    config = entry.config | (WIDER if name in ("llama", "qwen2") else {})
    program = TraceLoader(source=config, sequence_length=entry.length)(BATCH_SIZE)
    chain = LayerChain(program)
    counted = KeptBytes(chain)
    chain.run(counted)
    model = program.runnable.model
    blocks = {layer.id for layer in program.graph.layers if layer.id[-1].isdigit() and "#" not in layer.id}
    state = {_key(tensor) for tensor in (*model.parameters(), *model.buffers())}
    kept = _kept_by_an_ordinary_pass(program.runnable, blocks, state)
    assert len(blocks) >= 2
    assert sum(counted.bytes_of.values()) == pytest.approx(sum(kept.values()), rel=TOLERANCE)
    for block in blocks:
        assert counted.bytes_of[block] == pytest.approx(kept[block], rel=TOLERANCE), block
