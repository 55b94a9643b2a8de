"""The engines there are. A line here makes an engine selectable and puts it under the contract suite."""

ENGINES: dict[str, str] = {
    "fake": "antiphon.engines.fake.engine:FakeEngine",
    "llamacpp": "antiphon.engines.llamacpp.engine:LlamaCpp",
}
