"""The model: loading, adapters, sharding, compilation.

Start with `pretrained`.
"""
