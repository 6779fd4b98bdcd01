"""The command line: the tasks of invoke, one module for each subject, and what ./inv adds to plain invoke.

Start with /tasks.py, the namespace. `options` explains how a task declares its options.
"""
