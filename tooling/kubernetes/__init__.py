"""Kubernetes manifests of a job, for three operators. Start with `operators`. Pure, except `manifest`."""
