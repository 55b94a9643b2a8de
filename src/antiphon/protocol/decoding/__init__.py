"""Request bytes to structs: bounds, normalisation, validation and unknown fields, with errors that name the field."""
