"""`watch`: a live view of a job, from its records. Torch-free.

Start with `snapshot`, what is shown. `tail` reads the records as they grow. `plain` shows a snapshot as lines,
`screen` on a full terminal, with rich.
"""
