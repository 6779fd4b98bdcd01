"""Kubernetes manifests of a job, for the three operators that run such jobs. Pure, but for manifest.run."""
