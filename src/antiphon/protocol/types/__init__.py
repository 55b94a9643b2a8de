"""The wire types of the Responses API as msgspec structs, without behaviour."""
