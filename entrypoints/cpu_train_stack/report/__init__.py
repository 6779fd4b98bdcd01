"""The report of a job: OUTPUT/report.html, one file without network access, from the records of its ranks.

Start with `document`, which arranges the page of a job. `summary`, `curves`, `ranks`, `events`, `machine` and
`scaling` make its parts from a Job, `folder` reads and writes the files, and `compare` puts several jobs side by
side. cpu_train_stack.page draws the page. Torch-free.
"""
