"""A transformer by its shape alone: the layers of a GPT as Megatron runs them, by the published formulas.

Per layer and sample, with s tokens, hidden size h, a heads of d (width A = a d), feed-forward size f and two bytes per
element (Korthikanti et al. 2022, arXiv 2205.05198, section 4, where A = h and f = 4 h):

    parameters        4 h A + 2 h f                 the matrices; norms and biases (under 0.1 %) are left out
    forward FLOPs     2 s (4 h A + 2 h f) + 4 s^2 A the whole score matrix: attention is not fused
    kept              s (10 h + 8 A + 4 f) + 5 a s^2, which is 34 s h + 5 a s^2
      norms           10 s h                        inputs of norms 4 and of products 4, dropout masks 2: only sequence
                                                    parallelism divides these
      products        s (8 A + 4 f)                 queries, keys, values, attention's output; both ends of the GeLU
      attention core  5 a s^2                       softmax's output 2, dropout's mask 1 and output 2
    held from I to W  2 s (3 A + f + 2 h)           gradients of the products' outputs: 18 s h, which with the 14 s h of
                                                    their inputs are the 32 s h of Qi et al. 2024 (arXiv 2401.10241)
    all-reduced       4 s h per pass                after attention and after the feed-forward part

Moved bytes are those of fused kernels (scale, mask and softmax in one; bias, dropout and addition in one).

Three changes of later models, by the same counting. Grouped queries: keys and values have K columns, so that 4 h A
becomes 2 h A + 2 h K, 8 A kept becomes 4 A + 4 K and 3 A held from I to W becomes A + 2 K. A gated feed-forward part
has three matrices and keeps 6 f (two inputs of the gate, its output) instead of 4 f, and 2 f instead of f are held from
I to W. Fused attention (Dao et al. 2022, arXiv 2205.14135) keeps and moves no scores, computes the half of them that a
causal mask leaves, and multiplies queries and keys once more in its backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from planner.checks import check_number
from planner.graph import Edge, Layer, LayerGraph, TiedParameters
from planner.profile import Provenance
from profiles.model import LayerWork, ModelRecord

ITEMSIZE = 2
"""Bytes of a bfloat16 or float16 element; the published formulas count in these."""
DTYPE = "bfloat16"
FLOAT32 = 4
"""The loss is computed in single precision: its logits are kept so (section 4.3 of the paper)."""
NORM_BYTES = 10
"""Kept per token and column of h outside the tensor-parallel products (section 4.2.1 of the paper)."""
CORE_BYTES = 5
"""Kept per element of the score matrices: softmax's output, dropout's mask and output."""
CORE_FORWARD_BYTES = 9
"""Moved per element of the scores: softmax reads and writes 2 each, dropout reads 2 and writes 2 and its mask."""
CORE_BACKWARD_BYTES = 11
"""The same backwards: dropout reads 2 and its mask and writes 2, softmax reads two tensors and writes one."""
LOSS_BYTES = 14.0
"""Moved per logit in one pass of the loss: read 2 and write 4 to convert, then read and write 4 each."""
MAX_SIZE = 10**7
SOURCE = "Korthikanti et al. 2022 (arXiv 2205.05198), sections 4 and 5"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """What the formulas need. `vocabulary` is None where nothing is known of embedding and head.

    `key_value_heads` is None where every head has keys and values of its own. `gated`: the feed-forward part is a gated
    one; `tied`: embedding and head share their table; `fused_attention`: scores are never in memory.
    """

    hidden: int
    feedforward: int
    sequence_length: int
    heads: int
    head_size: int
    num_blocks: int
    vocabulary: int | None = None
    key_value_heads: int | None = None
    gated: bool = False
    tied: bool = True
    fused_attention: bool = False

    def __post_init__(self) -> None:
        for field in ("hidden", "feedforward", "sequence_length", "heads", "head_size", "num_blocks"):
            check_number(getattr(self, field), field, f"/{field}", low=1, high=MAX_SIZE)
        for field in ("vocabulary", "key_value_heads"):
            if getattr(self, field) is not None:
                check_number(getattr(self, field), field, f"/{field}", low=1, high=MAX_SIZE)

    @property
    def width(self) -> int:
        """A: columns of queries."""
        return self.heads * self.head_size

    @property
    def key_value_width(self) -> int:
        """K: columns of keys, and of values."""
        return (self.key_value_heads or self.heads) * self.head_size

    @property
    def scores(self) -> int:
        """a s^2: elements of the score matrices that are in memory."""
        return 0 if self.fused_attention else self.heads * self.sequence_length**2


def transformer_record(name: str, shape: TransformerShape) -> ModelRecord:
    """The model's work in bfloat16, dropout included; embedding and (tied) head where the vocabulary is known."""
    blocks = [f"block.{number}" for number in range(shape.num_blocks)]
    layers, work = [_block(shape, block) for block in blocks], {block: _block_work(shape) for block in blocks}
    tied: tuple[TiedParameters, ...] = ()
    if shape.vocabulary is not None:
        table = ITEMSIZE * shape.vocabulary * shape.hidden
        layers = [_embedding(shape, shape.vocabulary), *layers, _head(shape, shape.vocabulary)]
        work |= {"embedding": _embedding_work(shape, table), "head": _head_work(shape, shape.vocabulary)}
        tied = (TiedParameters(layers=("embedding", "head"), parameter_bytes=table),) if shape.tied else ()
    ids = [layer.id for layer in layers]
    size = ITEMSIZE * shape.sequence_length * shape.hidden
    return ModelRecord(
        name=name,
        dtype=DTYPE,
        sequence_length=shape.sequence_length,
        graph=LayerGraph(
            name=name,
            layers=tuple(layers),
            edges=tuple(Edge(source=a, target=b, bytes_per_sample=size) for a, b in pairwise(ids)),
            tied=tied,
        ),
        work=work,
        provenance=Provenance(method=f"by shape: {SOURCE}", notes=_notes(shape)),
    )


def _notes(shape: TransformerShape) -> tuple[str, ...]:
    if shape.vocabulary is not None:
        return ()
    return ("no vocabulary is given: the model is its blocks alone, without embedding, head and loss",)


def _block(shape: TransformerShape, name: str) -> Layer:
    keys_and_values = 2 * ITEMSIZE * shape.key_value_width
    return Layer(
        id=name,
        op="TransformerLayer",
        parameter_bytes=ITEMSIZE * _matrix_elements(shape),
        tensor_collective_bytes_per_sample=2 * ITEMSIZE * shape.sequence_length * shape.hidden,
        context_bytes_per_sample=keys_and_values * shape.sequence_length,
        kv_bytes_per_token=keys_and_values,
    )


def _matrix_elements(shape: TransformerShape) -> int:
    attention = 2 * shape.width + 2 * shape.key_value_width
    return shape.hidden * (attention + (3 if shape.gated else 2) * shape.feedforward)


def _block_work(shape: TransformerShape) -> LayerWork:
    s, h, f, scores = shape.sequence_length, shape.hidden, shape.feedforward, shape.scores
    core_flops = (2.0 if shape.fused_attention else 4.0) * s * s * shape.width
    flops = 2.0 * s * _matrix_elements(shape) + core_flops
    gate = 2 * f if shape.gated else 0
    outside = s * (NORM_BYTES * h + 4 * shape.width + 4 * shape.key_value_width + 4 * f + gate)
    return LayerWork(
        forward_flops=flops,
        backward_flops=2 * flops + (core_flops / 2 if shape.fused_attention else 0.0),
        forward_moved_bytes=float(s * (22 * h + 4 * f + gate) + CORE_FORWARD_BYTES * scores),
        backward_moved_bytes=float(s * (34 * h + 6 * f + 2 * gate) + CORE_BACKWARD_BYTES * scores),
        weight_bytes=ITEMSIZE * _matrix_elements(shape),
        activation_bytes=outside + CORE_BYTES * scores,
        workspace_bytes=2 * ITEMSIZE * max(scores, s * f),
        gradient_workspace_bytes=ITEMSIZE * h * max(shape.width + 2 * shape.key_value_width, f + gate // 2),
        selective_activation_bytes=None if shape.fused_attention else outside,
        selective_flops=0.0 if shape.fused_attention else core_flops,
        selective_moved_bytes=float(CORE_FORWARD_BYTES * scores),
        sequence_activation_bytes=NORM_BYTES * s * h,
        weight_pass_bytes=ITEMSIZE * s * (shape.width + 2 * shape.key_value_width + f + gate // 2 + 2 * h),
    )


def _embedding(shape: TransformerShape, vocabulary: int) -> Layer:
    return Layer(
        id="embedding",
        op="Embedding",
        parameter_bytes=ITEMSIZE * vocabulary * shape.hidden,
        tensor_collective_bytes_per_sample=ITEMSIZE * shape.sequence_length * shape.hidden,
    )


def _embedding_work(shape: TransformerShape, table: int) -> LayerWork:
    """Rows are selected and dropped out; the mask is kept."""
    elements = shape.sequence_length * shape.hidden
    return LayerWork(
        forward_flops=0.0,
        backward_flops=0.0,
        forward_moved_bytes=9.0 * elements,
        backward_moved_bytes=9.0 * elements,
        weight_bytes=table,
        activation_bytes=elements,
        sequence_activation_bytes=elements,
        gradient_workspace_bytes=table,
    )


def _head(shape: TransformerShape, vocabulary: int) -> Layer:
    return Layer(id="head", op="Head", parameter_bytes=ITEMSIZE * vocabulary * shape.hidden)


def _head_work(shape: TransformerShape, vocabulary: int) -> LayerWork:
    """The last norm, the product with the embedding's table, and the loss in single precision."""
    elements, logits = shape.sequence_length * shape.hidden, shape.sequence_length * vocabulary
    flops = 2.0 * logits * shape.hidden
    return LayerWork(
        forward_flops=flops,
        backward_flops=2 * flops,
        forward_moved_bytes=4.0 * elements + LOSS_BYTES * logits,
        backward_moved_bytes=6.0 * elements + LOSS_BYTES * logits,
        weight_bytes=ITEMSIZE * vocabulary * shape.hidden,
        activation_bytes=4 * elements + FLOAT32 * logits,
        sequence_activation_bytes=4 * elements,
        weight_pass_bytes=ITEMSIZE * logits,
        workspace_bytes=(FLOAT32 + ITEMSIZE) * logits,
        gradient_workspace_bytes=ITEMSIZE * vocabulary * shape.hidden,
    )
