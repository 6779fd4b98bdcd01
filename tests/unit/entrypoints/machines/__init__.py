"""Machines as Linux shows them, laid out as a small /proc, /sys and control group tree below a folder."""
