"""The shell tool in a container: a model runs commands on the server, confined by the sandbox."""
