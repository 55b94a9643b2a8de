"""Wire types of all APIs as msgspec structs, without behaviour."""
