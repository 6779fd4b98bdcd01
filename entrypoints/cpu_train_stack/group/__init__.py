"""The process group: its backends, its creation before the user's code runs, and the banner of rank 0.

Start with `create`.
"""
