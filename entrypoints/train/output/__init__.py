"""The output folder: checkpoints, results, the hub, and whether all ranks have the same weights.

Start with `folder`.
"""
