"""The Docker Engine: found, installed or started where that is allowed, and called.

Start with `api`.
"""
