"""The 33 control tokens of the Qwen3.5 family, in the family's order, at the top of a 4096-token vocabulary."""

VOCAB_SIZE = 4096

SPECIAL_TOKENS: tuple[str, ...] = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
)

VISIBLE_TOKENS: frozenset[str] = frozenset(
    {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
)
"""Added tokens that "skip special tokens" must keep: tool and reasoning parsers read them from the text."""

BASE_VOCAB_SIZE = VOCAB_SIZE - len(SPECIAL_TOKENS)

SPECIAL_IDS: dict[str, int] = {token: BASE_VOCAB_SIZE + index for index, token in enumerate(SPECIAL_TOKENS)}

END_OF_TEXT = SPECIAL_IDS["<|endoftext|>"]
IM_END = SPECIAL_IDS["<|im_end|>"]
