"""`entrypoint train`: fine-tune Hugging Face transformers on CPU ranks.

Start with `run`, which reads from top to bottom. `main` is the command line.
"""
