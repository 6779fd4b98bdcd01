"""Sites without Docker: an image as files (`export`), and batch scripts that run it (`slurm`)."""
