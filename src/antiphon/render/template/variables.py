"""Chat template variables of a request: chat_template_kwargs, and the reasoning effort as enable_thinking."""

from typing import Final

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.types.request import CreateResponse

# Names set by this server or jinja2, and parameters of the function that other servers render with: clients may not set
# them.
RESERVED: Final = frozenset(
    {
        *("messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("bos_token", "eos_token", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "strftime_now", "raise_exception"),
        *("namespace", "range", "dict", "lipsum", "cycler", "joiner", "self", "loop", "caller", "varargs", "kwargs"),
    }
)


def build_template_variables(request: CreateResponse) -> Json:
    """Return the template variables; rejects reserved names and a contradiction to the reasoning effort."""
    variables = dict(request.chat_template_kwargs or {})
    for name in variables:
        if name in RESERVED or name.startswith("_"):
            raise InvalidValue(f"chat_template_kwargs may not set {name!r}.", param="chat_template_kwargs")
    if (effort := request.reasoning.effort) is None:
        return variables
    reasoning_enabled = effort != "none"
    if variables.setdefault("enable_thinking", reasoning_enabled) is not reasoning_enabled:
        raise InvalidValue(
            f"chat_template_kwargs.enable_thinking contradicts the reasoning effort {effort!r}.",
            param="chat_template_kwargs",
        )
    return variables
