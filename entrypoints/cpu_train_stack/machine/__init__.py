"""The facts of this machine and container: CPUs, NUMA nodes, memory, limits, network, processes. Torch-free.

Start with `facts`, the dataclasses, and `topology`, which reads them.
"""
