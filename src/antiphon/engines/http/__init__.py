"""Engines that run elsewhere and speak chat completions over HTTP.

base.py is what all of them share; a module for each says where it is found and how it is asked what it can do;
fields.py is the one table of what each calls a field, or why it has none.
"""
