"""A trace with a symbolic batch, made concrete: shapes of one batch size, sizes as numbers instead of operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import map_arg


def specialise(module: fx.GraphModule, inputs: tuple[torch.Tensor, ...]) -> None:
    """Runs the trace on the shapes of `inputs`; every operator notes what it makes (`val`).

    Operators that make a number (sizes and what is computed of them) become that number.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        values = _Shapes(module).run_shapes(*(mode.from_tensor(value) for value in inputs))
    for node in reversed(module.graph.nodes):
        value = values.get(node)
        if node.op == "call_function" and isinstance(value, (int, float, bool)):
            _write_in(node, value)
            module.graph.erase_node(node)
        elif node.op != "output":
            node.meta["val"] = value
    module.recompile()


def _write_in(node: fx.Node, value: object) -> None:
    """The number in place of the node, wherever it is read."""

    def replaced(old: fx.Node) -> Any:
        return value if old is node else old

    for user in list(node.users):
        user.args, user.kwargs = map_arg(user.args, replaced), map_arg(user.kwargs, replaced)


class _Shapes(fx.Interpreter):
    def run_shapes(self, *inputs: torch.Tensor) -> dict[fx.Node, Any]:
        self.garbage_collect_values = False
        self.run(*inputs)
        return self.env
