"""Images: chosen, built from wheels, inspected, reproduced, described by an SBOM, pushed and signed.

Start with `build`.
"""
