"""What a request may say to a chat template: chat_template_kwargs, and its reasoning effort as enable_thinking."""

from typing import Final

from antiphon.core.prompt import Json
from antiphon.errors import InvalidValue
from antiphon.protocol.types.request import CreateResponse

# Ours, jinja2's, and the parameters of the function by which other servers render: never a client's to set.
RESERVED: Final = frozenset(
    {
        *("messages", "conversation", "tools", "add_generation_prompt", "continue_final_message", "chat_template"),
        *("bos_token", "eos_token", "tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length"),
        *("return_tensors", "return_dict", "return_assistant_tokens_mask", "strftime_now", "raise_exception"),
        *("namespace", "range", "dict", "lipsum", "cycler", "joiner", "self", "loop", "caller", "varargs", "kwargs"),
    }
)


def template_variables(request: CreateResponse) -> Json:
    given = dict(request.chat_template_kwargs or {})
    for name in given:
        if name in RESERVED or name.startswith("_"):
            raise InvalidValue(f"chat_template_kwargs may not set {name!r}.", param="chat_template_kwargs")
    effort = request.reasoning.effort
    if effort is None:
        return given
    thinks = effort != "none"
    if given.setdefault("enable_thinking", thinks) is not thinks:
        raise InvalidValue(
            f"chat_template_kwargs.enable_thinking contradicts the reasoning effort {effort!r}.",
            param="chat_template_kwargs",
        )
    return given
