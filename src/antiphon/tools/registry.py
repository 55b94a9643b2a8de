"""The tools that come with the server. A line here makes one known and puts it under the contract suite.

A class is made of the Config and the way out: `WebSearch(config, egress)`.
"""

TOOLS: dict[str, str] = {
    "web_search": "antiphon.tools.web_search.tool:WebSearch",
}
