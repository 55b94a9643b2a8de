"""From a request to an engine call: prompt, sampling, output rules and token counts."""
