"""What runs inside the image: one process a rank. See the README for the commands."""
