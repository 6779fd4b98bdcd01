"""Training under this stack and other recipes: `./inv bench train`.

Start with `run`.
"""
