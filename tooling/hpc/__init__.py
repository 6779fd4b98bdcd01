"""Sites without Docker: `export` writes an image as files, and `slurm` a batch script that runs them."""
