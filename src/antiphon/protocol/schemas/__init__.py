"""JSON schemas, GBNF and Lark grammars of clients, vetted before they are compiled."""
