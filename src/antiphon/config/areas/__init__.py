"""Settings by area: a row here is a flag, a variable, a TOML key, and a line of the help and the docs.

A Struct has one line of ancestors, so areas follow each other, in the order of the docs: server ◄ models ◄ storing ◄
tools ◄ embedded ◄ observing ◄ compat ◄ Config.
"""
