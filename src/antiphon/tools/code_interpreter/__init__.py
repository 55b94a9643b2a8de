"""The code_interpreter tool: a model runs Python code in a container."""
