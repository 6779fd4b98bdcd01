"""Ranks on several nodes through Intel MPI's hydra over ssh: `entrypoint mpi-launch`.

Start with `command`.
"""
