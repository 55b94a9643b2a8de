"""Settings by area. Each field is a flag, an environment variable, a TOML key, and a line of the help and the docs."""
