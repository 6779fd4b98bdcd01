"""`./inv dev emulate`: a command of an image on an emulated Sapphire Rapids, for machines without AMX."""
