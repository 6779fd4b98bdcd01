"""Metrics by their definitions."""
