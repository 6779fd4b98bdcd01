"""`./inv plan-cluster`: predicts how long a job takes on N nodes. Start with `command`; `step` is the model."""
