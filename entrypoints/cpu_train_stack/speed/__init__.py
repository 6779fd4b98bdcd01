"""Adaptations that make training faster or record it, in scripts and in `train`: no padding, faster layers, LoRA.

`catalogue` lists them.
"""
