"""What every room uses: errors, messages, paths, files, locks between processes."""
