"""Local clusters of containers: `./inv up`, `down`, `logs` and `demo`.

Start with `run`; `compose` writes the file.
"""
