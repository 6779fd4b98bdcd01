"""Kubernetes manifests of a job, one for each of three operators. Pure, except manifest.run."""
