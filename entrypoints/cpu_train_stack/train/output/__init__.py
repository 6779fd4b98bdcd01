"""The output folder: checkpoints, weights, the hub, and whether all ranks have the same weights.

Start with `folder`.
"""
