"""The command line of `./inv`: its parser, shell completion, and the tasks, one module for each subject.

Start with /tasks.py, which lists the tasks; `options` explains how a task declares its options.
"""
