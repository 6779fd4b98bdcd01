"""Local clusters of containers: `./inv up`, `down`, `logs`, `status`, `watch` and `demo`.

Start with `up` and `run`; `compose` has the description of a cluster and its Compose file.
"""
