"""The scripts that `./inv bench train` runs in containers. Mounted, so that all images run the same scripts.

They run on Python 3.9, for images of older pins. `jobs`, `pace` and `split` are pure: no torch, no transformers.
"""
