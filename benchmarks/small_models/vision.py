"""Vision models."""

from __future__ import annotations

from benchmarks.small_models.entry import IMAGE_SIZE, PATCH_SIZE, SIZES, Values, entries

PATCHES: Values = SIZES | {"image_size": IMAGE_SIZE, "patch_size": PATCH_SIZE, "num_labels": 5}
LABELS: Values = {"num_labels": 5, "image_size": IMAGE_SIZE}
VISION = entries(
    "vision",
    {
        "vit": ("ViTForImageClassification", PATCHES),
        "deit": ("DeiTForImageClassification", PATCHES),
        "beit": ("BeitForImageClassification", PATCHES),
        "dinov2": ("Dinov2ForImageClassification", PATCHES),
        "swin": (
            "SwinForImageClassification",
            LABELS | {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        ),
        "swinv2": (
            "Swinv2ForImageClassification",
            LABELS | {"patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4},
        ),
        "convnext": (
            "ConvNextForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]},
        ),
        "convnextv2": (
            "ConvNextV2ForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]},
        ),
        "resnet": (
            "ResNetForImageClassification",
            {"num_labels": 5, "embedding_size": 8, "hidden_sizes": [8, 16, 16, 16], "depths": [1, 1, 2, 1]},
        ),
        "regnet": (
            "RegNetForImageClassification",
            {
                "num_labels": 5,
                "embedding_size": 8,
                "hidden_sizes": [8, 16, 16, 16],
                "depths": [1, 1, 2, 1],
                "groups_width": 8,
            },
        ),
        "mobilenet_v2": ("MobileNetV2ForImageClassification", LABELS | {"depth_multiplier": 0.25}),
        "mobilevit": (
            "MobileViTForImageClassification",
            LABELS
            | {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 64], "num_attention_heads": 4},
        ),
        "efficientnet": (
            "EfficientNetForImageClassification",
            LABELS | {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
        ),
        "poolformer": (
            "PoolFormerForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]},
        ),
        "segformer": (
            "SegformerForSemanticSegmentation",
            LABELS
            | {
                "hidden_sizes": [8, 16, 16, 32],
                "depths": [1, 1, 1, 1],
                "num_attention_heads": [1, 2, 2, 4],
                "decoder_hidden_size": 16,
            },
        ),
        "pvt": (
            "PvtForImageClassification",
            LABELS | {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]},
        ),
        "focalnet": (
            "FocalNetForImageClassification",
            LABELS
            | {
                "embed_dim": 16,
                "depths": [1, 1],
                "hidden_sizes": [16, 32],
                "focal_levels": [2, 2],
                "focal_windows": [3, 3],
            },
        ),
        "videomae": ("VideoMAEForVideoClassification", PATCHES | {"num_frames": 4}),
    },
)
