"""The training loop: Hugging Face's Trainer with our gradient exchange, losses, progress and checkpoints.

Start with `trainer`.
"""
