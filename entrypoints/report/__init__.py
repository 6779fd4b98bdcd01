"""The report of a job: OUTPUT/report.html, one file without network access, from the records of its ranks.

`blocks` are the parts of a page. `summary`, `curves`, `ranks`, `events`, `machine` and `topology` make them from a
Job, `document` puts them in order, and `compare` puts several jobs side by side. `page` writes the file.
Torch-free.
"""
