"""`watch`: a live view of a job, from its records. Torch-free.

Start with `snapshot`, what is shown. `tail` reads the records again and again. `plain` shows a snapshot as lines,
`screen` on a whole terminal, with rich.
"""
