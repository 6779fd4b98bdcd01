"""The torch that the extension was compiled against. The build overwrites this file."""

TORCH_VERSION = "2.13.0"
__version__ = TORCH_VERSION
