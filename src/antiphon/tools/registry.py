"""Registry of the built-in tools. An entry makes a tool available and adds it to the contract tests.

Each class is constructed with the services of the server: `WebSearch(services)`. The output of a model passes the tools
in this order: a citation of a file has the file's name, and every other marker belongs to web_search. The code
interpreter and the shell cite by positions in the text, from which the others have removed their markers.
"""

TOOLS: dict[str, str] = {
    "file_search": "antiphon.tools.file_search.tool:FileSearch",
    "web_search": "antiphon.tools.web_search.tool:WebSearch",
    "code_interpreter": "antiphon.tools.code_interpreter.tool:CodeInterpreter",
    "hosted_shell": "antiphon.tools.hosted_shell.tool:HostedShell",
    "image_generation": "antiphon.tools.image_generation.tool:ImageGeneration",
}

# The tools that a tool server can run instead, with the name of that server.
SERVED_TOOLS: dict[str, tuple[str, str]] = {
    "web_search": ("browser", "antiphon.tools.tool_server.browser:ServedWebSearch"),
    "code_interpreter": ("python", "antiphon.tools.tool_server.code:ServedCodeInterpreter"),
    "hosted_shell": ("container", "antiphon.tools.tool_server.shell:ServedShell"),
}
