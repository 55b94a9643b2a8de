"""The headings under which the help and the docs have settings."""

from antiphon.config.notes import Group

SERVER = Group("Server")
MODEL = Group("Model")
DEADLINES = Group("Deadlines")
STORE = Group("Store")
EGRESS = Group("Egress")
TOOLS = Group("Tools")
LLAMACPP = Group("Engine llamacpp")
FAKE = Group("Engine fake")
LOGGING = Group("Logging")
OBSERVING = Group("Observing")
COMPATIBILITY = Group("Compatibility")
CLIENT = Group("Client")
LIMITS = Group("Limits")
