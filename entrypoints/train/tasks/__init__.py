"""One module for each training task.

Start with `registry`.
"""
