"""Parts of every command: errors, options and their files, installed packages, hooks on imports.

Start with `errors`.
"""
