"""Faster torch operators: attention, dropout, bf16 products, and parts of the layers of encoders and decoders.

Start with `library`, which loads the kernels (kernels/ in the sources).
"""
