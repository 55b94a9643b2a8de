"""Approvals of code in the form of approvals of MCP calls."""

import pytest

from antiphon.core.code_approvals import is_code_request, list_run_requests, to_call_arguments, to_request_arguments
from antiphon.protocol.types.items import (
    CodeInterpreterCall,
    InputItem,
    McpApprovalRequest,
    McpApprovalResponse,
    ShellAction,
    ShellCall,
)
from antiphon.protocol.types.tools import LocalEnvironment

CODE = '{"code": "print(1)"}'


def ask(request_id: str, arguments: str = CODE, label: str = "code_interpreter", name: str = "") -> McpApprovalRequest:
    return McpApprovalRequest(id=request_id, server_label=label, name=name or label, arguments=arguments)


def allow(request_id: str, approve: bool = True) -> McpApprovalResponse:
    return McpApprovalResponse(approval_request_id=request_id, approve=approve)


def run_code(code: str = "print(1)") -> CodeInterpreterCall:
    return CodeInterpreterCall(id="ci_1", container_id="cntr_1", code=code, outputs=None)


def run_commands(*commands: str) -> ShellCall:
    action = ShellAction(commands=[*commands])
    return ShellCall(call_id="call_1", action=action, environment=LocalEnvironment())


def test_code_is_json_in_a_request_and_text_in_a_call() -> None:
    for code in ("print('ü')", '{"code": 1}', ""):
        assert to_call_arguments("code_interpreter", to_request_arguments("code_interpreter", code)) == code
    assert to_request_arguments("code_interpreter", "\ud800") == '{"code":"?"}'
    assert to_request_arguments("hosted_shell", "{}") == to_call_arguments("hosted_shell", "{}") == "{}"
    assert to_call_arguments("code_interpreter", "not json") == ""


def test_only_requests_with_a_reserved_label_and_its_name_are_those_of_code() -> None:
    assert is_code_request(ask("a"))
    assert is_code_request(ask("a", label="shell"))
    assert not is_code_request(ask("a", label="shell", name="ls"))
    assert not is_code_request(ask("a", label="sums"))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([ask("a"), allow("a"), run_code()], {"a"}),
        ([ask("a"), allow("a"), run_code("print(2)")], set()),
        ([ask("a"), run_code()], set()),
        ([run_code(), ask("a"), allow("a")], set()),
        ([ask("a"), allow("a", approve=False), run_code()], set()),
        ([ask("a"), ask("b"), allow("a"), allow("b"), run_code()], {"b"}),
        ([ask("a"), ask("b"), allow("a"), allow("b"), run_code(), run_code()], {"a", "b"}),
        ([ask("a", '{"commands": ["ls"]}', "shell"), allow("a"), run_commands("ls")], {"a"}),
        ([ask("a", '{"commands": ["ls"]}', "shell"), allow("a"), run_commands("ls", "pwd")], set()),
        ([ask("a", CODE, "sums"), allow("a"), run_code()], set()),
        ([allow("a"), run_code()], set()),
    ],
)
def test_a_request_was_run_if_a_call_of_its_code_follows_its_approval(
    items: list[InputItem], expected: set[str]
) -> None:
    assert list_run_requests(items) == expected
