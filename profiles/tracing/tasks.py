"""What a transformers configuration is trained for: which class is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.errors import InputError
from profiles.tracing import feeds
from profiles.tracing.feeds import MakeFeed


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A family of transformers classes: suffixes of their names, the Auto class that builds them, and their feed."""

    suffixes: tuple[str, ...]
    auto_class: str
    mapping: str
    make_feed: MakeFeed

    def class_of(self, config: Any) -> Any | None:
        """The class that is built for a configuration; None where the task knows none."""
        import transformers

        made = getattr(transformers, self.auto_class)._model_mapping.get(type(config), None)
        return made[0] if isinstance(made, tuple) else made


def task_of(config: Any) -> Task:
    """By the first class in `architectures`: the task that builds it, else the one of its suffix. Without one: by the
    first task that knows the model type.
    """
    name = (getattr(config, "architectures", None) or [""])[0]
    kind = config.model_type
    found = (
        *(task for task in TASKS if name and _classes(task).get(kind) == name),
        *(task for task in TASKS if name.endswith(task.suffixes)),
        *(task for task in TASKS if kind in _classes(task)),
    )
    if found:
        return found[0]
    raise InputError(
        f"model_type {kind!r} (architectures {name or 'none'}) is no task that can be fed: "
        f"{', '.join(task.auto_class.removeprefix('AutoModelFor') for task in TASKS)}; write a module:factory"
    )


def _classes(task: Task) -> dict[str, str]:
    """Model type -> class name of this task."""
    from transformers.models.auto import modeling_auto

    return dict(getattr(modeling_auto, task.mapping))


def _task(suffixes: tuple[str, ...], name: str, mapping: str, make_feed: MakeFeed) -> Task:
    return Task(
        suffixes=suffixes,
        auto_class=f"AutoModelFor{name}",
        mapping=f"MODEL_FOR_{mapping}_MAPPING_NAMES",
        make_feed=make_feed,
    )


GENERATION = ("ForConditionalGeneration",)
TASKS = (
    _task(("ForImageClassification",), "ImageClassification", "IMAGE_CLASSIFICATION", feeds.images),
    _task(("ForVideoClassification",), "VideoClassification", "VIDEO_CLASSIFICATION", feeds.videos),
    _task(("ForSemanticSegmentation",), "SemanticSegmentation", "SEMANTIC_SEGMENTATION", feeds.segmentation),
    _task(GENERATION, "Seq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM", feeds.pairs),
    _task((*GENERATION, "ForSpeechToText"), "SpeechSeq2Seq", "SPEECH_SEQ_2_SEQ", feeds.transcription),
    _task(GENERATION, "ImageTextToText", "IMAGE_TEXT_TO_TEXT", feeds.image_prompt),
    _task(("ForMaskedLM", "ForPreTraining"), "MaskedLM", "MASKED_LM", feeds.tokens),
    _task(("ForCausalLM", "LMHeadModel"), "CausalLM", "CAUSAL_LM", feeds.tokens),
    _task(("ForCTC",), "CTC", "CTC", feeds.sound_frames),
    _task(("ForAudioClassification",), "AudioClassification", "AUDIO_CLASSIFICATION", feeds.sound),
    _task(("ForSequenceClassification",), "SequenceClassification", "SEQUENCE_CLASSIFICATION", feeds.sentences),
    _task(("ForTokenClassification",), "TokenClassification", "TOKEN_CLASSIFICATION", feeds.token_labels),
    _task(
        ("CLIPModel", "SiglipModel"), "ZeroShotImageClassification", "ZERO_SHOT_IMAGE_CLASSIFICATION", feeds.contrast
    ),
    Task(suffixes=("Model",), auto_class="AutoModel", mapping="MODEL_MAPPING_NAMES", make_feed=feeds.features),
)
"""Tried in this order for a configuration that names no architecture."""
