"""`./inv bench train`: training with this stack and with other recipes. Start with `run`."""
