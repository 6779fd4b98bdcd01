"""`./inv` itself: the parser, completion, and one module of tasks for each subject.

Start with `parser`.
"""
