"""The user's files and data sets as rows of a task.

Start with `splits`.
"""
