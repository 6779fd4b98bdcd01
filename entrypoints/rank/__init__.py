"""One rank's life: the plan is applied, the worker starts, the script runs, the exit is reported.

Start with `start`, then `worker`.
"""
