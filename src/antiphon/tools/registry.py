"""Registry of the built-in tools. An entry makes a tool available and adds it to the contract tests.

Each class is constructed with the config and the egress client: `WebSearch(config, egress)`.
"""

TOOLS: dict[str, str] = {
    "web_search": "antiphon.tools.web_search.tool:WebSearch",
}
