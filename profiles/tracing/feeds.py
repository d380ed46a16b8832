"""What the forward pass of a transformers model is given, by task: arguments, target, and the output that is trained.

Sizes come from the model's configuration; where it has none, from the constants below. Sounds are one second long
where the configuration fixes no length. Images and sounds in a prompt take as many tokens as the model itself makes of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from planner.errors import InputError
from planner.runtime.program import LossFunction
from profiles.tracing.batches import (
    Draw,
    Integers,
    Positions,
    Prompt,
    Values,
    cross_entropy,
    frame_cross_entropy,
    mean_square,
    pixel_cross_entropy,
)

DEFAULT_IMAGE_SIZE = 224
SAMPLES_PER_SECOND = 16_000
FRAMES_PER_SECOND = 100
"""Of spectrograms: one frame every 10 ms, the usual hop."""
DEFAULT_FRAMES = 16
"""Of videos."""
DEFAULT_MEL_BINS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Keyword arguments of `forward` and how each is drawn; the target; the field of the answer that is trained."""

    inputs: dict[str, Draw]
    target: Draw
    output: str = "logits"
    loss: LossFunction = field(default=cross_entropy)


MakeFeed = Callable[[nn.Module, int, torch.dtype], Feed]
"""Of the model (on any device), the tokens of a sample, and the dtype of images and sounds."""


def tokens(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """Language models: token ids, and a token per position as target."""
    high = _vocabulary(model)
    return Feed(inputs={"input_ids": Integers(high, (length,))}, target=Integers(high, (length,)))


def pairs(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """Encoder and decoder, both of text."""
    ids = Integers(_vocabulary(model), (length,))
    return Feed(inputs={"input_ids": ids, "decoder_input_ids": ids}, target=ids)


def token_labels(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A class per token."""
    return Feed(
        inputs={"input_ids": Integers(_vocabulary(model), (length,))}, target=Integers(_labels(model), (length,))
    )


def sentences(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A class per sample of text."""
    return Feed(inputs={"input_ids": Integers(_vocabulary(model), (length,))}, target=Integers(_labels(model)))


def images(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A class per image."""
    return Feed(inputs={"pixel_values": _image(model, dtype)}, target=Integers(_labels(model)))


def videos(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A class per video."""
    one = _image(model, dtype)
    config = _config(model)
    frames = int(getattr(config, "num_frames", 0) or getattr(config, "frames_per_clip", DEFAULT_FRAMES))
    return Feed(inputs={_main(model): Values((frames, *one.shape), dtype)}, target=Integers(_labels(model)))


def segmentation(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A class per pixel."""
    image = _image(model, dtype)
    return Feed(
        inputs={"pixel_values": image}, target=Integers(_labels(model), image.shape[1:]), loss=pixel_cross_entropy
    )


def sound(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A class per sound."""
    return Feed(inputs={_main(model): _sound(model, dtype)}, target=Integers(_labels(model)))


def sound_frames(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A token per frame of a sound: cross entropy of an alignment, in place of CTC's sum over alignments."""
    heard = _sound(model, dtype)
    return Feed(
        inputs={_main(model): heard},
        target=Integers(_config(model).vocab_size, (max(heard.shape),)),
        loss=frame_cross_entropy,
    )


def transcription(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """Encoder of sound, decoder of text."""
    ids = Integers(_vocabulary(model), (length,))
    return Feed(inputs={_main(model): _sound(model, dtype), "decoder_input_ids": ids}, target=ids)


def contrast(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """Every image of the batch against every text."""
    text = Integers(_vocabulary(model), (length,))
    return Feed(
        inputs={"input_ids": text, "pixel_values": _image(model, dtype)},
        target=Positions(),
        output="logits_per_image",
    )


def image_prompt(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """One image, then text; a token per position as target."""
    mark, high = _mark(model), _vocabulary(model)
    if mark is None:  # the text attends to the image, or the model puts it before the text itself
        image, prompt = _image(model, dtype), Integers(high, (length,))
        return Feed(inputs={"input_ids": prompt, "pixel_values": image}, target=prompt)
    image, marks = _read_image(model, dtype)
    if marks >= length:
        raise InputError(
            f"sequence length is {length}, but an image of {_config(model).model_type!r} takes {marks} tokens: give a "
            "longer sequence"
        )
    marked = Prompt(high, length, mark, marks)
    return Feed(inputs={"input_ids": marked, "pixel_values": image}, target=Integers(high, (length,)))


def features(model: nn.Module, length: int, dtype: torch.dtype) -> Feed:
    """A model without a head: its last hidden state, drawn towards a number per sample."""
    main = _main(model)
    draws: dict[str, Callable[[], Draw]] = {
        "input_ids": lambda: Integers(_vocabulary(model), (length,)),
        "pixel_values": lambda: _image(model, dtype),
        "input_values": lambda: _sound(model, dtype),
        "input_features": lambda: _sound(model, dtype),
    }
    if main not in draws:
        raise InputError(f"{_config(model).model_type!r} reads {main!r}, which cannot be drawn: write a module:factory")
    inputs = {main: draws[main]()}
    if _config(model).is_encoder_decoder:
        inputs["decoder_input_ids"] = Integers(_vocabulary(model), (length,))
    return Feed(inputs=inputs, target=Values((), torch.float32), output="last_hidden_state", loss=mean_square)


def _any(model: nn.Module) -> Any:
    """The model with the methods that transformers gives it."""
    return model


def _config(model: nn.Module) -> Any:
    return model.config


def _main(model: nn.Module) -> str:
    return str(model.main_input_name)


def _vocabulary(model: nn.Module) -> int:
    return int(_config(model).get_text_config().vocab_size)


def _labels(model: nn.Module) -> int:
    return int(_config(model).num_labels)


def _image(model: nn.Module, dtype: torch.dtype) -> Values:
    vision = getattr(_config(model), "vision_config", _config(model))
    size = getattr(vision, "image_size", None) or DEFAULT_IMAGE_SIZE
    pair = (int(size[0]), int(size[1])) if isinstance(size, (list, tuple)) else (int(size), int(size))
    channels = int(getattr(vision, "num_channels", 0) or getattr(vision, "in_channels", 3))
    return Values((channels, *pair), dtype)


def _sound(model: nn.Module, dtype: torch.dtype) -> Values:
    """A waveform where the model has convolutions for it, else a spectrogram in the order of axes it is read in."""
    config = getattr(_config(model), "encoder_config", _config(model))
    bins = getattr(config, "num_mel_bins", None) or DEFAULT_MEL_BINS
    if hasattr(config, "max_source_positions") and hasattr(
        _any(model).get_encoder(), "conv1"
    ):  # Whisper: axes exchanged
        return Values((bins, 2 * config.max_source_positions), dtype)
    if hasattr(config, "max_length") and hasattr(config, "frequency_stride"):  # a spectrogram read as an image
        return Values((config.max_length, bins), dtype)
    if _main(model) == "input_features":
        return Values((FRAMES_PER_SECOND, bins), dtype)
    return Values((SAMPLES_PER_SECOND,), dtype)


def _mark(model: nn.Module) -> int | None:
    """The token that stands for an image's features, where the model replaces tokens by them."""
    config = _config(model)
    for name in ("image_token_id", "image_token_index"):
        if getattr(config, name, None) is not None:
            return int(getattr(config, name))
    return None


def _read_image(model: nn.Module, dtype: torch.dtype) -> tuple[Values, int]:
    """One image as the model reads it, alone or in a list of images, and how many tokens it makes of it."""
    one = _image(model, dtype)
    listed = Values((1, *one.shape), dtype)
    try:
        return one, _image_tokens(model, one)
    except (ValueError, IndexError, RuntimeError):  # its code expects one dimension more
        return listed, _image_tokens(model, listed)


def _image_tokens(model: nn.Module, image: Values) -> int:
    """Asked on shapes only."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        device = next(model.parameters()).device
        made = _any(model).get_image_features(torch.empty((1, *image.shape), dtype=image.dtype, device=device))
        made = getattr(made, "pooler_output", made)
        parts = made if isinstance(made, (list, tuple)) else [made]
        return sum(part.numel() // part.shape[-1] for part in parts)
