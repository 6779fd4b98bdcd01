"""Ranks on several nodes, started over ssh by Intel MPI's mpirun and watched from the launcher. Torch-free."""
