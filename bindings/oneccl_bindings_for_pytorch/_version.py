"""Written anew by the build: the torch that the extension was compiled against."""

TORCH_VERSION = "2.13.0"
__version__ = TORCH_VERSION
