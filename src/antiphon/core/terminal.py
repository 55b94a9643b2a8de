"""The last events of a response, by the way it ended."""

from msgspec import UNSET

from antiphon.core.entries import Ended, Fault
from antiphon.errors import AntiphonError
from antiphon.protocol import events as ev
from antiphon.protocol.response import Response


def terminal(response: Response, ended: Ended) -> list[ev.Event]:
    if ended.status == "completed":
        return [ev.Completed(response=response)]
    if ended.fault is not None:
        return [_error(ended.fault), ev.Failed(response=response)]
    # The SDKs know no `response.cancelled`, and Codex tries a failed one again.
    return [ev.Incomplete(response=response)]


def fault_of(error: AntiphonError) -> Fault:
    return Fault(
        type=error.type, code=error.code, message=error.message, param=error.param, retry_after=error.retry_after
    )


def _error(fault: Fault) -> ev.Error:
    body = ev.ErrorBody(type=fault.type, code=fault.code, message=fault.message, param=fault.param)
    return ev.Error(
        code=fault.code,
        message=fault.message,
        param=fault.param,
        error=body,
        retry_after=UNSET if fault.retry_after is None else fault.retry_after,
    )
