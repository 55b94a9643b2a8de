"""JSON Schema, GBNF and Lark: schemas and grammars from clients, vetted before anything compiles them."""
