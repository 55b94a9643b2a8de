"""From a request to the call of an engine: prompt, sampling, output rules and token counts."""
