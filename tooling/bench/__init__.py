"""Benchmarks in containers and their reports: `./inv bench`."""
