"""What a transformers configuration is trained for: which class is built, and how its batches look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from planner.errors import InputError
from planner.runtime.program import MakeBatch
from profiles.tracing.batches import ImageBatch, TokenBatch

DEFAULT_IMAGE_SIZE = 224


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """How a family of transformers classes is fed: suffix of the class name, Auto class, and the shape of a batch."""

    suffixes: tuple[str, ...]
    auto_class: str
    mapping: str
    make_batch: Callable[[Any, int, str, torch.dtype], MakeBatch]


def task_of(config: Any) -> Task:
    """By the first class in `architectures`, else by the first task that knows the model type."""
    from transformers.models.auto import modeling_auto

    name = (getattr(config, "architectures", None) or [""])[0]
    for task in TASKS:
        if name.endswith(task.suffixes):
            return task
    for task in TASKS:
        if config.model_type in getattr(modeling_auto, task.mapping):
            return task
    raise InputError(
        f"model_type {config.model_type!r} (architectures {name or 'none'}) is no task that can be fed: causal, masked "
        "and sequence-to-sequence language models, sequence and token classification, image classification; write a "
        "module:factory"
    )


def make_batch(task: Task, config: Any, length: int, device: str, dtype: torch.dtype) -> MakeBatch:
    """Batches of the configuration's shapes: `length` tokens, or images in `dtype`."""
    try:
        return task.make_batch(config, length, device, dtype)
    except AttributeError as fault:
        raise InputError(f"no batch can be made for {config.model_type!r}: {fault}; write a module:factory") from None


def _tokens(config: Any, length: int, device: str, dtype: torch.dtype, **options: Any) -> TokenBatch:
    vocabulary = config.get_text_config().vocab_size
    return TokenBatch(vocabulary, length, options.pop("num_classes", vocabulary), device, **options)


def _token_labels(config: Any, length: int, device: str, dtype: torch.dtype) -> MakeBatch:
    return _tokens(config, length, device, dtype, num_classes=config.num_labels)


def _sample_labels(config: Any, length: int, device: str, dtype: torch.dtype) -> MakeBatch:
    return _tokens(config, length, device, dtype, num_classes=config.num_labels, per_token=False)


def _pairs(config: Any, length: int, device: str, dtype: torch.dtype) -> MakeBatch:
    return _tokens(config, length, device, dtype, num_inputs=2)


def _images(config: Any, length: int, device: str, dtype: torch.dtype) -> MakeBatch:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", DEFAULT_IMAGE_SIZE)
    pair = (int(size[0]), int(size[1])) if isinstance(size, (list, tuple)) else (int(size), int(size))
    return ImageBatch(vision.num_channels, pair, config.num_labels, dtype, device)


def _task(suffixes: tuple[str, ...], name: str, mapping: str, make_batch: Callable[..., MakeBatch]) -> Task:
    return Task(
        suffixes=suffixes,
        auto_class=f"AutoModelFor{name}",
        mapping=f"MODEL_FOR_{mapping}_MAPPING_NAMES",
        make_batch=make_batch,
    )


TASKS = (
    _task(("ForImageClassification",), "ImageClassification", "IMAGE_CLASSIFICATION", _images),
    _task(("ForConditionalGeneration",), "Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM", _pairs),
    _task(("ForMaskedLM", "ForPreTraining"), "MaskedLM", "MASKED_LM", _tokens),
    _task(("ForCausalLM", "LMHeadModel"), "CausalLM", "CAUSAL_LM", _tokens),
    _task(("ForSequenceClassification",), "SequenceClassification", "SEQUENCE_CLASSIFICATION", _sample_labels),
    _task(("ForTokenClassification",), "TokenClassification", "TOKEN_CLASSIFICATION", _token_labels),
)
"""Tried in this order for a configuration that names no architecture."""
