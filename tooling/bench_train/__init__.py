"""`./inv bench train`: one training job as each recipe runs it, in turn, beside what the machine could do."""
