"""Runnable models from a transformers configuration: random weights, nothing downloaded, no code of others run."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import nn

from planner import codec
from planner.errors import InputError
from planner.profile import DTYPE_BYTES
from planner.runtime.program import RunnableModel
from profiles.tracing.batches import Batch
from profiles.tracing.feeds import Feed
from profiles.tracing.tasks import Task, task_of

DEFAULT_SEQUENCE_LENGTH = 1024
MODEL_LAYERS = {"n_layer", "n_layers", "num_layers", "num_hidden_layers"} | {
    f"{prefix}{side}_layers" for prefix in ("", "n_", "num_") for side in ("encoder", "decoder")
}
"""Keys of configurations that count a model's repeated blocks."""
LAYER_COUNT = re.compile(r"(n|num)_(\w+_)?layers?")
"""Counts of other layers, which may be 0 (`num_nextn_predict_layers`); `vision_feature_layer` is a position."""
FUSED_ATTENTION = "pipeplan_fused"
"""Our name for transformers' scaled-dot-product attention with `is_causal` instead of a mask tensor.

Under export transformers builds the causal mask as an s x s tensor, which eager runs skip; registered under a name of
its own the attention gets no mask, so the trace is what a real run does, and fused kernels apply.
"""


def from_transformers_config(
    source: str | Path | Mapping[str, Any],
    *,
    sequence_length: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    seed: int = 0,
) -> RunnableModel:
    """The model that a transformers `config.json` describes, with seeded random weights and synthetic data.

    `source` is the file, its folder, or its values. The class is the one of `architectures`, else the usual one of the
    model type. `sequence_length` defaults to the smaller of 1024 and the model's positions; images have the
    configuration's size (224 where it has none). The loss is cross entropy on the logits; targets of language models
    are already shifted. `device` is `cpu` or `meta` (shapes only, no memory). InputError when the file is no
    configuration, the type or task is unknown, or the model does not fit into this machine's memory.
    """
    config = _config(source)
    task = task_of(config)
    length = _sequence_length(config, sequence_length)
    element = torch_dtype(dtype)
    attention = _attention(config, task, length)
    model = _build(config, task, "meta", element, seed, attention)
    if device == "cpu":
        _check_memory(model, config.model_type)
        model = _build(config, task, "cpu", element, seed, attention)
    elif device != "meta":
        raise InputError(f"device is {device!r}: models are built on 'cpu' or 'meta'")
    feed = _feed(task, model, length, element)
    _single_output(model, feed)
    batch = Batch(tuple(feed.inputs.values()), feed.target, device)
    return RunnableModel(name=config.model_type, model=model, make_batch=batch, loss=feed.loss)


def torch_dtype(name: str) -> torch.dtype:
    """The floating torch dtype of a dtype name of profiles."""
    value = getattr(torch, name, None) if name in DTYPE_BYTES else None
    if not isinstance(value, torch.dtype) or not value.is_floating_point:
        raise InputError(f"dtype {name!r} cannot be traced: use float32, bfloat16, float16 or float64")
    return value


def _check_layer_counts(values: Mapping[str, Any], where: str = "") -> None:
    """InputError for a model of no layers, or of fewer; transformers builds an empty one without a word."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_layer_counts(value, f"{where}{key}.")
        elif isinstance(value, int) and value < _fewest_layers(key):
            raise InputError(
                f"{where}{key} is {value} in the configuration: it must be at least {_fewest_layers(key)}",
                pointer="/" + f"{where}{key}".replace(".", "/"),
            )


def _fewest_layers(key: str) -> float:
    """The least value of a configuration's key; minus infinity where it counts no layers."""
    if key in MODEL_LAYERS:
        return 1
    return 0 if LAYER_COUNT.fullmatch(key) else -math.inf


def read_values(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """The values of a configuration file, its folder, or a mapping; InputError if it is no configuration."""
    if isinstance(source, Mapping):
        values: Any = dict(source)
    else:
        path = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
        try:
            values = codec.parse(path.read_bytes())
        except OSError as fault:
            raise InputError(f"{str(source)!r} cannot be read ({fault.strerror}): give a config.json") from None
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise InputError(f"{_describe(source)} is no transformers configuration: it has no 'model_type'")
    return values


def _describe(source: str | Path | Mapping[str, Any]) -> str:
    return "the given mapping" if isinstance(source, Mapping) else f"{str(source)!r}"


def _config(source: str | Path | Mapping[str, Any]) -> Any:
    values = read_values(source)
    transformers = _transformers()
    _check_layer_counts(values)
    kind = values.pop("model_type")
    values.pop("auto_map", None)  # code of others is never run
    try:
        return transformers.AutoConfig.for_model(kind, **values)
    except Exception as fault:
        raise InputError(
            f"{_describe(source)}: transformers {transformers.__version__} cannot read a configuration of model_type "
            f"{kind!r}: {_first_line(fault)}"
        ) from None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise InputError("transformers is not installed: install pipeplan[torch] to trace its configurations") from None
    library: Any = transformers
    library.utils.logging.set_verbosity_error()
    return library


def _sequence_length(config: Any, wanted: int | None) -> int:
    limit = getattr(config.get_text_config(), "max_position_embeddings", None)
    length = wanted if wanted is not None else min(limit or DEFAULT_SEQUENCE_LENGTH, DEFAULT_SEQUENCE_LENGTH)
    if length < 1:
        raise InputError(f"sequence length is {length}: it must be at least 1")
    if limit and length > limit:
        raise InputError(
            f"sequence length is {length}, but {config.model_type!r} has {limit} positions (max_position_embeddings): "
            "shorten the sequence or raise that value in the configuration"
        )
    return length


def _attention(config: Any, task: Task, sequence_length: int) -> str | None:
    """Fused attention without a mask tensor, for classes that can use it and no window shorter than the sequence.

    Classes that cannot (attention with position biases, sinks or capped scores of its own) need their mask tensor.
    """
    made = task.class_of(config)
    if made is not None and not made._supports_sdpa:
        return None
    text = config.get_text_config()
    windows = [getattr(text, name, None) for name in ("sliding_window", "attention_chunk_size")]
    if any(window is not None and window < sequence_length for window in windows):
        return None
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(FUSED_ATTENTION, sdpa_attention_forward)
    return FUSED_ATTENTION


def _build(config: Any, task: Task, device: str, dtype: torch.dtype, seed: int, attention: str | None) -> nn.Module:
    """The model with seeded weights; falls back to the model's own attention where it has no exchangeable one."""
    auto_class = getattr(_transformers(), task.auto_class)
    options = {"attn_implementation": attention} if attention else {}
    try:
        with torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(seed)
            model: nn.Module = auto_class.from_config(config, **options)
    except Exception as fault:
        if attention is not None and isinstance(fault, (ValueError, ImportError, KeyError)):
            config._attn_implementation = None  # the failed build left its own there
            return _build(config, task, device, dtype, seed, None)
        raise InputError(
            f"no {config.model_type!r} model can be built from this configuration: {_first_line(fault)}"
        ) from fault
    return model.to(dtype)


def _check_memory(model: nn.Module, name: str) -> None:
    """Weights, gradients and two optimizer states must fit; the model is still on the meta device here."""
    needed = 4 * sum(p.numel() * p.element_size() for p in model.parameters())
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InputError(
            f"training {name!r} needs {needed / 2**30:.1f} GiB for weights, gradients and optimizer (this machine has "
            f"{available / 2**30:.1f} GiB): price it for a device type instead of measuring it here"
        )


def _feed(task: Task, model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    try:
        return task.make_feed(model, length, dtype)
    except InputError:
        raise
    except Exception as fault:  # whatever the model's own code says about what it cannot be given
        kind = model.config.model_type  # type: ignore[union-attr]
        raise InputError(f"no batch can be made for {kind!r}: {_first_line(fault)}; write a module:factory") from fault


def _single_output(model: nn.Module, feed: Feed) -> None:
    """Makes `forward` take positional inputs and return the trained output alone, without wrapping (names stay).

    Classes with attention of their own make its mask as the export does not follow: they are given one of ones.
    """
    config: Any = model.config
    needs_mask = (
        "input_ids" in feed.inputs
        and not model._supports_sdpa
        and "attention_mask" in signature(model.forward).parameters
    )
    names = tuple(feed.inputs)
    options: dict[str, Any] = {}
    if hasattr(config.get_text_config(), "use_cache"):
        config.get_text_config().use_cache = False
        options["use_cache"] = False
    original = model.forward

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, inputs, strict=True))
        if needs_mask:
            ids = given["input_ids"]
            given["attention_mask"] = torch.ones(ids.shape, dtype=ids.dtype, device=ids.device)  # depends on no data
        output = getattr(original(**given, **options), feed.output)
        assert isinstance(output, torch.Tensor)
        return output

    model.forward = forward


def _first_line(fault: BaseException) -> str:
    return (str(fault).strip().splitlines() or [type(fault).__name__])[0][:300]
