"""Faster torch operators: attention, dropout, and products of bf16 matrices on CPUs without bf16 instructions.

Start with `library`, which loads the kernels (kernels/ in the sources).
"""
