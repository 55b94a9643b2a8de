"""What chat completions and completions ask for beyond a CreateResponse is put into the work, or refused by name."""

from collections.abc import Iterator

from msgspec.structs import replace

from antiphon.core.dialects.chat_extensions import Wishes
from antiphon.service.encryption.cache_salt import salt
from antiphon.service.planning.planner import Settled
from antiphon.service.planning.validation import unsupported


def grant(settled: Settled, wishes: Wishes, tenant: str) -> Settled:
    able, prepared = settled.able, settled.prepared
    for name, param in _wished(wishes):
        if name not in able.honours:
            raise unsupported(name, able, settled.served.engine.name, param)
    work = prepared.work
    sampling = replace(
        work.sampling,
        logit_bias=wishes.logit_bias,
        min_tokens=wishes.min_tokens,
        stop_token_ids=work.sampling.stop_token_ids + wishes.stop_token_ids,
        prompt_logprobs=wishes.prompt_logprobs,
        return_token_ids=wishes.return_token_ids,
    )
    granted = replace(
        work,
        sampling=sampling,
        constraint=wishes.grammar or work.constraint,
        salt=work.salt if wishes.cache_salt is None else salt(tenant, wishes.cache_salt),
        priority=wishes.priority,
        kv_transfer_params=wishes.kv_transfer_params,
    )
    return replace(settled, prepared=replace(prepared, work=granted))


def _wished(wishes: Wishes) -> Iterator[tuple[str, str]]:
    """What an engine has to honour, and the field by which it is asked for."""
    for name in ("logit_bias", "min_tokens", "stop_token_ids", "return_token_ids", "priority"):
        if getattr(wishes, name):
            yield name, name
    for name in ("prompt_logprobs", "cache_salt", "kv_transfer_params"):
        if getattr(wishes, name) is not None:
            yield name, name
    if wishes.grammar is not None:
        yield f"grammar.{wishes.grammar.syntax}", wishes.grammar_param
