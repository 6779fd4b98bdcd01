"""Jobs that are broken on purpose: `./inv dev faults`.

Start with `faults`.
"""
