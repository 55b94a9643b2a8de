"""Strings that model families treat as control tokens: roles, turns, channels, calls, reasoning and images.

A string that ends where a number would follow stands for all tokens with that prefix. Markers that a family writes as
plain text ("USER:", "### Instruction:") are no control tokens and are not listed: nothing tells them from text.
"""

from typing import Final

_CHATML: Final = ("<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|endoftext|>")
_THINK: Final = ("<think>", "</think>")
_TOOL_CALL: Final = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>")
_ROLES: Final = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
_BOUNDS: Final = ("<s>", "</s>", "<unk>", "<pad>")
_FIM: Final = ("<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>")
_DATA: Final = (
    "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "<gh_stars>", "<issue_start>", "<issue_comment>",
    "<issue_closed>", "<jupyter_start>", "<jupyter_text>", "<jupyter_code>", "<jupyter_output>", "<jupyter_script>",
    "<empty_output>", "<commit_before>", "<commit_msg>", "<commit_after>",
)  # fmt: skip

CONTROL_STRINGS_BY_FAMILY: Final[dict[str, tuple[str, ...]]] = {
    "chatml": _CHATML,  # Yi, SmolLM, OpenHermes, Dolphin, Arctic, Bielik, Falcon-H1, many fine-tunes
    "hermes": (*_CHATML, *_TOOL_CALL, "<scratch_pad>", "</scratch_pad>"),
    "qwen": (
        *_CHATML, *_TOOL_CALL, *_THINK, "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>",
        "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>",
        "<|video_pad|>", "<|audio_start|>", "<|audio_end|>", "<|audio_pad|>", "<|fim_prefix|>", "<|fim_middle|>",
        "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
    ),
    "llama 2": (*_BOUNDS, "[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<PRE>", "<SUF>", "<MID>", "<EOT>"),
    "llama 3": (
        "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
        "<|python_tag|>", "<|step_id|>", "<|image|>", "<|finetune_right_pad_id|>", "<|reserved_special_token_",
    ),
    "llama 4": (
        "<|begin_of_text|>", "<|end_of_text|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>", "<|step|>",
        "<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>", "<|image_start|>", "<|image_end|>", "<|image|>",
        "<|patch|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|text_post_train_reserved_special_token_",
    ),
    "mistral": (
        *_BOUNDS, "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[THINK]",
        "[/THINK]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "[AUDIO]",
        "[BEGIN_AUDIO]", "[TRANSCRIBE]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "<SPECIAL_",
    ),
    "deepseek": (
        *_THINK, "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>",
        "<|EOT|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>",
        "<｜tool▁output▁end｜>", "<｜search▁begin｜>", "<｜search▁end｜>",
        "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "｜DSML｜",
        "<｜place▁holder▁no▁",
    ),
    "gemma": (
        "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>",
        "<end_of_image>", "<image_soft_token>", "[multimodal]", "<unused",
    ),
    "gemma 4": (
        "<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>",
        "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|image>", "<image|>",
        "<|image|>", "<|audio>", "<audio|>", "<|audio|>",
    ),
    "functiongemma": (
        "<start_function_declaration>", "<end_function_declaration>", "<start_function_call>", "<end_function_call>",
        "<start_function_response>", "<end_function_response>", "<escape>", "<start_of_turn>", "<end_of_turn>",
    ),
    "phi": (
        *_ROLES, *_CHATML, "<|tool|>", "<|/tool|>", "<|tool_call|>", "<|/tool_call|>", "<|tool_response|>",
        "<|endofprompt|>", "<|placeholder", "<|dummy_",
    ),
    "gpt-oss": (
        "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>", "<|refusal|>",
        "<|startoftext|>", "<|endoftext|>", "<|endofprompt|>", "<|reserved_",
    ),
    "glm": (
        *_ROLES, *_THINK, "<|observation|>", "[gMASK]", "[sMASK]", "[MASK]", "<sop>", "<eop>", "<tool_call>",
        "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
        "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|begin_of_box|>",
        "<|end_of_box|>", "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>",
    ),
    "command": (
        "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>",
        "<BOS_TOKEN>", "<EOS_TOKEN>", "<EOP_TOKEN>", "<MASK_TOKEN>", "<PAD>", "<UNK>", "<CLS>", "<SEP>",
        "<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>", "<|END_ACTION|>", "<|START_RESPONSE|>",
        "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>", "<|START_TOOL_RESULT|>", "<|END_TOOL_RESULT|>",
        "<|EXTRA_",
    ),
    "granite": (
        *_FIM, *_DATA, "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>", "<|start_of_cite|>",
        "<|end_of_cite|>", "<|start_of_plugin|>", "<|end_of_plugin|>", "<|unk|>", "<|pad|>", *_THINK, "<tool_call>",
        "</tool_call>",
    ),
    "smollm": (*_CHATML, *_DATA),
    "starcoder": (*_FIM, *_DATA, "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    "jamba": ("<|bom|>", "<|eom|>", "<|startoftext|>", "<|endoftext|>", "<|pad|>", "<tool_calls>", "</tool_calls>"),
    "internlm": (
        *_CHATML, "<|action_start|>", "<|action_end|>", "<|interpreter|>", "<|plugin|>", "<eoh>", "<eoa>", "<eosys>",
        "[UNUSED_TOKEN_", "<TOKENS_UNUSED_",
    ),
    "kimi": (
        "[BOS]", "[EOS]", "[EOT]", "[PAD]", "[UNK]", "[start_header_id]", "[end_header_id]", "<|im_user|>",
        "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>", "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
        "<|media_begin|>", "<|media_content|>", "<|media_end|>", "<|media_pad|>", "<|open|>", "<|close|>", "<|sep|>",
        "<|end_of_msg|>", *_THINK,
    ),
    "minimax": (
        "]~b]", "]~!b[", "[e~[", "]!p~[", "]!d~[", "]<]", "<minimax:tool_call>", "</minimax:tool_call>", "<mm:think>",
        "</mm:think>", "<beginning_of_sentence>", "<end_of_sentence>", *_THINK,
    ),
    "seed": (
        "<seed:bos>", "<seed:eos>", "<seed:pad>", "<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>",
        "</seed:cot_budget_reflect>", "<seed:tool_call>", "</seed:tool_call>",
    ),
    "hunyuan": (
        "<|startoftext|>", "<|eos|>", "<|pad|>", "<|extra_", "<｜hy_", *_THINK, "<tool_calls>", "</tool_calls>",
    ),
    "exaone": ("[BOS]", "[EOS]", "[|system|]", "[|user|]", "[|assistant|]", "[|tool|]", "[|endofturn|]", "<thought>",
               "</thought>"),
    "baichuan": (*_BOUNDS, "<reserved_"),
    "nemotron": (
        *_BOUNDS, *_THINK, "<extra_id_", "<SPECIAL_", "<TOOLCALL>", "</TOOLCALL>", "<AVAILABLE_TOOLS>",
        "</AVAILABLE_TOOLS>", "<TOOL_RESPONSE>", "</TOOL_RESPONSE>",
    ),
    "olmo": (*_ROLES, *_CHATML, "<function_calls>", "</function_calls>", "<functions>", "</functions>"),
    "zephyr": (*_BOUNDS, *_ROLES, "<|endoftext|>"),  # TinyLlama, StableLM, Falcon 3
    "apertus": (
        "<|system_start|>", "<|system_end|>", "<|developer_start|>", "<|developer_end|>", "<|user_start|>",
        "<|user_end|>", "<|assistant_start|>", "<|assistant_end|>", "<|inner_prefix|>", "<|inner_suffix|>",
        "<|tools_prefix|>", "<|tools_suffix|>",
    ),
    "lfm": (
        *_CHATML, "<|startoftext|>", "<|tool_list_start|>", "<|tool_list_end|>", "<|tool_call_start|>",
        "<|tool_call_end|>", "<|tool_response_start|>", "<|tool_response_end|>", "<|pad|>",
    ),
    "step": (
        "<|BOT|>", "<|EOT|>", "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "<｜tool_call_begin｜>",
        "<｜tool_call_end｜>", "<｜tool_sep｜>", "<｜tool_outputs_begin｜>", "<｜tool_outputs_end｜>",
        "<｜tool_output_begin｜>", "<｜tool_output_end｜>", *_THINK,
    ),
    "grok": ("<|separator|>", "<|eos|>", "<|pad|>", "<|control"),
    "ernie": (*_BOUNDS, "<|begin_of_sentence|>", "<|end_of_sentence|>", "<|IMAGE_PLACEHOLDER|>", "<mask:", "<cls>",
              "<sep>"),
    "solar": (
        "<|begin|>", "<|end|>", "<|content|>", "<|think|>", "<|flush|>", "<|calls|>", "<|tool_calls|>",
        "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", "<|startoftext|>",
    ),
    "plamo": ("<|plamo:",),
    "k2": ("<ifm|", "</ifm|"),
    "longcat": ("<longcat_",  "</longcat_"),
    "dots": ("<|userprompt|>", "<|endofuserprompt|>", "<|response|>", "<|endofresponse|>", "<dots_function_call>",
             "</dots_function_call>"),
    "reka": ("<sep>", "<|endoftext|>", "<image>", "</image>"),
    "openchat": ("<|end_of_turn|>", "<|pad_0|>", *_BOUNDS),
    "aquila": ("<|startofpiece|>", "<|endofpiece|>", "<|sep|>", "[CLS]", "[SEP]"),
    "minicpm": (*_BOUNDS, "<用户>", "<AI>", *_CHATML),
    "smolvlm": ("<end_of_utterance>", "<fake_token_around_image>", "<image>", "<row_", *_CHATML),
}  # fmt: skip

CONTROL_STRINGS: Final[frozenset[str]] = frozenset(
    text for texts in CONTROL_STRINGS_BY_FAMILY.values() for text in texts
)
