"""One rank's life: apply the plan, start the worker, run the script or the trainer, report how the rank ended.

Start with `start`, then `worker` and `work`.
"""
