"""`doctor`: check this container for training. Each line is ok, warning or error, with how to fix it.

Start with `main`.
"""
