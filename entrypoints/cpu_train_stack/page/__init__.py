"""HTML pages with charts, each one file without network access: of jobs (`report`), plans and checks (`--html`).

`blocks` are the parts of a page, `topology` makes the picture of a node, and `render` writes the file. Torch-free.
"""
