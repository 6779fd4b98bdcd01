"""The training tasks, one module each: how rows become the input of Trainer, and how they are scored.

Start with `registry`.
"""
