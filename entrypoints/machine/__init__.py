"""What this machine and container have: CPUs, NUMA nodes, memory, limits, network, processes. Torch-free.

Start with `facts`, the dataclasses, and `topology`, which reads them.
"""
