"""Settings by area. Each field is a flag, an environment variable, a TOML key, and a line of the help and the docs.

msgspec structs support single inheritance only, so the areas inherit from each other, in the order of the docs: server
◄ models ◄ storage ◄ tools ◄ embedded ◄ observability ◄ compat ◄ Config.
"""
