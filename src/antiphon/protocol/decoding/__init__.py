"""Decoding of request bytes to structs: limits, normalisation, validation, and errors that name the field."""
