"""Images: built from wheels, inspected, reproduced, described by an SBOM, pushed.

Start with `build`.
"""
