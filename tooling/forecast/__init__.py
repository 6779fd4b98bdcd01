"""How long a job takes on N nodes: `./inv plan-cluster`.

Start with `command`; `step` is the model.
"""
