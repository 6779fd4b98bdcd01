"""Parts of every command, of both sides: messages, errors, options, files and locks, packages, hooks on imports.

Start with `errors`.
"""
