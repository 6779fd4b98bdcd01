"""Which row of the version matrix: images/versions.toml parsed into validated pins.

Start with `pin`, the dataclass, and `parse`.
"""
