"""Used by every room: errors, progress messages, paths, files and locks, YAML, the checkout's identity."""
