"""What `./inv bench train` runs in containers: mounted, no part of the image, so that every image runs the same.

Python 3.9, for images of older pins. `jobs`, `pace` and `split` are pure: without torch and transformers.
"""
