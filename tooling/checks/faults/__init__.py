"""Jobs that are broken on purpose: `./inv faults`.

Start with `faults`.
"""
