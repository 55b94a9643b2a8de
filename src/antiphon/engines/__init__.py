"""Inference engines: embedded ones and adapters for engine servers over HTTP."""
