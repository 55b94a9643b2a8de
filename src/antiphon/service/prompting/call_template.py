"""Model target and call template: the parts of a model call that do not depend on the messages."""

from msgspec import Struct

from antiphon.agent.output_rules import OutputRules
from antiphon.core.prompt import GenerationRequest, Sampling
from antiphon.engines.base import Capabilities
from antiphon.parsers.base import Parser
from antiphon.protocol.decoding.codec import DecodedRequest
from antiphon.render.messages import PromptFrame
from antiphon.service.model_io.base import ModelAdapter, OutputSpec
from antiphon.service.model_io.sampling import make_sampling
from antiphon.service.model_io.served_model import OutputTokenLimits, ServedModel


class CallTemplate(Struct, frozen=True, kw_only=True):
    """A model call without its messages, valid for all prompts of a frame if the adapter sends chats unchanged."""

    frame: PromptFrame
    output_spec: OutputSpec
    parser_type: type[Parser]
    generation: GenerationRequest  # with the frame as its prompt, for no particular tenant
    is_generic: bool  # no engine fields are set; only the tenant's salt may be added
    rules: OutputRules | None  # requirements on the output
    has_grammars: bool  # some rules have grammars, which must be checked first


class ModelTarget(Struct):
    served: ServedModel
    capabilities: Capabilities
    max_tokens: int | None  # output tokens; None: as many as fit
    sampling: Sampling  # with that limit
    earlier_param: str  # the request field that refers to the items before the input
    adapter: ModelAdapter | None = None  # reused for all equal requests, if possible
    frame: PromptFrame | None = None  # of prompts whose history declares no tools; cached on first use
    template: CallTemplate | None = None  # for that frame, if the adapter is reusable


def make_target(
    decoded: DecodedRequest, served: ServedModel, capabilities: Capabilities, default_limits: OutputTokenLimits
) -> ModelTarget:
    """`default_limits`: output limits of models that have no own ones."""
    request = decoded.request
    max_tokens = (served.output_limits or default_limits).resolve(request.max_output_tokens)
    earlier_param = "previous_response_id" if request.conversation is None else "conversation"
    return ModelTarget(
        served, capabilities, max_tokens, make_sampling(request, decoded.sent, max_tokens), earlier_param
    )
