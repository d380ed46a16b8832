"""Small models for the runtime's tests, importable by the processes that run them."""

from __future__ import annotations

import copy
import os
import signal
from dataclasses import dataclass, replace

import torch
from torch import nn

from planner.runtime.program import RunnableModel, TracedProgram
from profiles.tracing import trace

SEED = 7
WIDTH, WIDE, LONG = 16, 64, 128
VOCABULARY, SEQUENCE = 61, 12


class Block(nn.Module):
    """A residual block with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Join(Block):
    """A block that reads two earlier tensors and data."""

    def forward(self, x: torch.Tensor, early: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return x + torch.tanh(self.linear(x) + early * scale)


class Skip(nn.Module):
    """Four blocks; the last one also reads the output of the first and the model's second input."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block(), Join()])

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](x)
        middle = self.blocks[2](self.blocks[1](first))
        joined: torch.Tensor = self.blocks[3](middle, first, scale)
        return joined


def skip_model() -> RunnableModel:
    """`Skip` with a mean squared error."""
    torch.manual_seed(SEED)
    return RunnableModel(name="skip", model=Skip(), make_batch=_skip_batch, loss=nn.functional.mse_loss)


class Attention(nn.Module):
    """A residual block of causal attention whose scores are tensors of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.inward(x).chunk(3, dim=-1)
        scores = queries @ keys.transpose(1, 2) / WIDTH**0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        shares = torch.softmax(scores.masked_fill(future, -1e4), dim=-1)
        attended: torch.Tensor = self.outward(shares @ values)
        return x + attended


def attention_model() -> RunnableModel:
    """Four attention blocks over many tokens: scores need far more memory than all else."""
    torch.manual_seed(SEED)
    model = nn.Sequential(*(Attention() for _ in range(4)))
    return RunnableModel(name="attention", model=model, make_batch=_long_batch, loss=nn.functional.mse_loss)


def wide_model() -> RunnableModel:
    """Twelve equal layers whose weights need far more memory than what they keep of a sample."""
    torch.manual_seed(SEED)
    layers = (nn.Linear(WIDE, WIDE, bias=False) for _ in range(12))
    return RunnableModel(name="wide", model=nn.Sequential(*layers), make_batch=_wide_batch, loss=nn.functional.mse_loss)


def frozen_model() -> RunnableModel:
    """`skip_model` whose first two blocks are not trained."""
    model = skip_model()
    blocks = model.model.get_submodule("blocks")
    for block in list(blocks.children())[:2]:
        block.requires_grad_(False)
    return model


class Turn(Block):
    """A block that returns a strided view: its square output, transposed."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = int(WIDTH**0.5)
        return super().forward(x.reshape(-1, WIDTH)).view(-1, side, side).transpose(1, 2)


class Total(nn.Module):
    """A sum, whose gradient is an expanded view, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True) + self.bias


class Branches(nn.Module):
    """Two branches of two blocks each from one block, joined by the last one, with an early tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = Block()
        self.left = nn.ModuleList([Block(), Block()])
        self.right = nn.ModuleList([Block(), Block()])
        self.join = Join()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        stem = self.stem(x)
        left = self.left[1](self.left[0](stem))
        right = self.right[1](self.right[0](stem))
        joined: torch.Tensor = self.join(left + stem, right, scale)
        return joined


def branches_model() -> RunnableModel:
    """`Branches` with a mean squared error."""
    torch.manual_seed(SEED)
    return RunnableModel(name="branches", model=Branches(), make_batch=_skip_batch, loss=nn.functional.mse_loss)


class Aside(Block):
    """A block with a second output that depends on data and a weight alone, by a path of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        return super().forward(x), torch.tanh(self.aside(scale))


class Beside(nn.Module):
    """The second block's side output does not depend on what the first block makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.second = Aside()
        self.third = Join()

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        x, aside = self.second(self.first(x), scale)
        joined: torch.Tensor = self.third(x, aside, scale)
        return joined


def beside_model() -> RunnableModel:
    """`Beside` with a mean squared error."""
    torch.manual_seed(SEED)
    return RunnableModel(name="beside", model=Beside(), make_batch=_skip_batch, loss=nn.functional.mse_loss)


def strided_model() -> RunnableModel:
    """Neither the tensors nor the gradients between its three layers are contiguous."""
    torch.manual_seed(SEED)
    model = nn.Sequential(Turn(), Turn(), Total())
    return RunnableModel(name="strided", model=model, make_batch=_summed_batch, loss=nn.functional.mse_loss)


class Codes(nn.Module):
    """The first block makes integer codes, the second one looks them up."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Embedding(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.second(self.first(x * scale).argmax(-1))
        return embedded


def codes_model() -> RunnableModel:
    """A model that would send integers between stages."""
    torch.manual_seed(SEED)
    return RunnableModel(name="codes", model=Codes(), make_batch=_skip_batch, loss=nn.functional.mse_loss)


def gpt2_model() -> RunnableModel:
    """GPT-2 from its configuration, 4 blocks, tied embedding and head."""
    import transformers

    torch.manual_seed(SEED)
    config = transformers.GPT2Config(
        n_layer=4, n_embd=32, n_head=2, vocab_size=VOCABULARY, n_positions=SEQUENCE, use_cache=False,
        bos_token_id=None, eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return RunnableModel(
        name="gpt2", model=Logits(transformers.GPT2LMHeadModel(config)), make_batch=_token_batch, loss=token_loss
    )


class Logits(nn.Module):
    """A causal language model that returns its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids, use_cache=False).logits
        return logits


def token_loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy over all tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def killed_model() -> RunnableModel:
    """`skip_model` whose loss ends its process: the last stage dies in the middle of a step."""
    model = skip_model()
    return RunnableModel(name="killed", model=model.model, make_batch=model.make_batch, loss=_kill)


def failing_model() -> RunnableModel:
    """`skip_model` whose loss raises."""
    model = skip_model()
    return RunnableModel(name="failing", model=model.model, make_batch=model.make_batch, loss=_fail)


@dataclass(frozen=True)
class Loader:
    """Picklable: traces the named model of this module."""

    factory: str

    def __call__(self, batch_size: int) -> TracedProgram:
        return trace(globals()[self.factory](), batch_size)


@dataclass(frozen=True)
class HalfLoader(Loader):
    """The named model and its data in bfloat16."""

    def __call__(self, batch_size: int) -> TracedProgram:
        made = globals()[self.factory]()

        def make_batch(size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
            inputs, target = made.make_batch(size, seed)
            return tuple(map(_half, inputs)), _half(target)

        return trace(replace(made, model=made.model.to(torch.bfloat16), make_batch=make_batch), batch_size)


def _half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


@dataclass(frozen=True)
class ForeignReference(Loader):
    """Traces one model and claims that it came from another one, whose weights are a little larger."""

    def __call__(self, batch_size: int) -> TracedProgram:
        program = super().__call__(batch_size)
        other = copy.deepcopy(program.runnable.model)
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.mul_(1.01)
        return replace(program, runnable=replace(program.runnable, model=other))


def _skip_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    made = torch.randn(3, batch_size, WIDTH, generator=torch.Generator().manual_seed(seed))
    return (made[0], made[1]), made[2]


def _long_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    made = torch.randn(2, batch_size, LONG, WIDTH, generator=torch.Generator().manual_seed(seed))
    return (made[0],), made[1]


def _wide_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    made = torch.randn(2, batch_size, WIDE, generator=torch.Generator().manual_seed(seed))
    return (made[0],), made[1]


def _summed_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    (x, _), target = _skip_batch(batch_size, seed)
    return (x,), target.view(batch_size, 1, WIDTH)[:, :, : int(WIDTH**0.5)]


def _token_batch(batch_size: int, seed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (batch_size, SEQUENCE + 1), generator=generator)
    return (tokens[:, :-1],), tokens[:, 1:]


def _kill(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return output


def _fail(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    raise ValueError("no loss today")
