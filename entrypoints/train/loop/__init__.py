"""What is special about the training loop: gradient exchange, losses, progress.

Start with `trainer`.
"""
