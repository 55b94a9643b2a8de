"""Registry of the tool-call formats. An entry makes a format selectable and adds it to the contract tests."""

from functools import cache
from importlib import import_module

from antiphon.errors import StartupError
from antiphon.parsers.calls.base import CallFormat

FORMATS: dict[str, str] = {
    "apertus": "antiphon.parsers.calls.json_families:ApertusCalls",
    "cohere_command3": "antiphon.parsers.calls.json_families:CohereCalls",
    "deepseek_v3": "antiphon.parsers.calls.json_families:DeepseekV3Calls",
    "deepseek_v31": "antiphon.parsers.calls.json_families:DeepseekV31Calls",
    "deepseek_v32": "antiphon.parsers.calls.tagged:DeepSeekV32Calls",
    "deepseek_v4": "antiphon.parsers.calls.tagged:DeepSeekV4Calls",
    "dots": "antiphon.parsers.calls.tagged:DotsCalls",
    "ernie45": "antiphon.parsers.calls.json_families:Ernie45Calls",
    "functiongemma": "antiphon.parsers.calls.literal_families:FunctionGemmaCalls",
    "gemma4": "antiphon.parsers.calls.literal_families:Gemma4Calls",
    "gigachat3": "antiphon.parsers.calls.json_families:Gigachat3Calls",
    "glm45": "antiphon.parsers.calls.tagged:GlmCalls",
    "glm47": "antiphon.parsers.calls.tagged:GlmCalls",
    "granite": "antiphon.parsers.calls.json_families:GraniteCalls",
    "granite-20b-fc": "antiphon.parsers.calls.json_families:Granite20bCalls",
    "granite4": "antiphon.parsers.calls.json_families:Granite4Calls",
    "hermes": "antiphon.parsers.calls.json_families:HermesCalls",
    "hunyuan_a13b": "antiphon.parsers.calls.json_families:HunyuanCalls",
    "hy_v3": "antiphon.parsers.calls.tagged:HunyuanV3Calls",
    "internlm": "antiphon.parsers.calls.json_families:InternlmCalls",
    "jamba": "antiphon.parsers.calls.json_families:JambaCalls",
    "json": "antiphon.parsers.calls.json_families:BareCalls",
    "kimi_k2": "antiphon.parsers.calls.json_families:KimiK2Calls",
    "lfm2": "antiphon.parsers.calls.literal_families:Lfm2Calls",
    "ling3": "antiphon.parsers.calls.tagged:GlmCalls",
    "llama3_json": "antiphon.parsers.calls.json_families:Llama3Calls",
    "llama4_pythonic": "antiphon.parsers.calls.literal_families:Llama4PythonicCalls",
    "longcat": "antiphon.parsers.calls.json_families:LongcatCalls",
    "mimo": "antiphon.parsers.calls.tagged:MimoCalls",
    "minicpm5": "antiphon.parsers.calls.tagged:MiniCpm5Calls",
    "minimax": "antiphon.parsers.calls.json_families:MinimaxCalls",
    "minimax_m2": "antiphon.parsers.calls.tagged:MinimaxM2Calls",
    "mistral": "antiphon.parsers.calls.json_families:MistralCalls",
    "nemotron": "antiphon.parsers.calls.json_families:NemotronCalls",
    "olmo3": "antiphon.parsers.calls.literal_families:Olmo3Calls",
    "phi4_mini_json": "antiphon.parsers.calls.json_families:Phi4MiniCalls",
    "poolside_v1": "antiphon.parsers.calls.tagged:GlmCalls",
    "pythonic": "antiphon.parsers.calls.literal_families:PythonicCalls",
    "qwen3_coder": "antiphon.parsers.calls.tagged:QwenCoderCalls",
    "qwen3_xml": "antiphon.parsers.calls.tagged:QwenCoderCalls",
    "seed_oss": "antiphon.parsers.calls.tagged:SeedOssCalls",
    "step3": "antiphon.parsers.calls.tagged:Step3Calls",
    "step3p5": "antiphon.parsers.calls.tagged:QwenCoderCalls",
    "xlam": "antiphon.parsers.calls.json_families:XlamCalls",
}


@cache
def load_format(name: str) -> type[CallFormat]:
    """Return the class of a format; its module is imported on first use."""
    if name not in FORMATS:
        raise StartupError(f"Unknown tool-call format {name!r}; available formats: {', '.join(sorted(FORMATS))}.")
    module, _, attribute = FORMATS[name].partition(":")
    found: type[CallFormat] = getattr(import_module(module), attribute)
    return found
