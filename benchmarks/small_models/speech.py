"""Speech models."""

from __future__ import annotations

from benchmarks.small_models.entry import IDS, POSITIONS, SIZES, Values, entries

WAVES: Values = SIZES | {
    "vocab_size": 32,
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 4, 4],
    "conv_kernel": [10, 8, 4],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 3,
}
SPEECH = entries(
    "speech",
    {
        "wav2vec2": ("Wav2Vec2ForCTC", WAVES),
        "hubert": ("HubertForCTC", WAVES),
        "wavlm": ("WavLMForCTC", WAVES),
        "unispeech": ("UniSpeechForCTC", WAVES),
        "sew": ("SEWForCTC", WAVES | {"squeeze_factor": 2}),
        "wav2vec2-conformer": ("Wav2Vec2ConformerForCTC", WAVES),
        "whisper": (
            "WhisperForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_start_token_id": 2,
                "num_mel_bins": 20,
                "max_source_positions": 32,
                "max_target_positions": 64,
            },
        ),
        "speech_to_text": (
            "Speech2TextForConditionalGeneration",
            IDS
            | {
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "decoder_start_token_id": 2,
                "input_feat_per_channel": 80,
                "conv_channels": 32,
                "max_source_positions": 128,
                "max_target_positions": 64,
            },
        ),
        "moonshine": (
            "MoonshineForConditionalGeneration",
            IDS
            | POSITIONS
            | {
                "hidden_size": 32,
                "intermediate_size": 64,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "decoder_start_token_id": 2,
            },
        ),
        "audio-spectrogram-transformer": (
            "ASTForAudioClassification",
            SIZES | {"num_labels": 5, "num_mel_bins": 32, "max_length": 64},
        ),
    },
)
