"""The model: configuration, loading, adapters, weights in 4 bits, sharding, memory.

Start with `pretrained`.
"""
