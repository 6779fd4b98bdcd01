"""Kubernetes manifests: jobs for three operators, and runtimes for Kubeflow's SDK. Pure, except `manifest`.

Start with `operators`; `trainer` has the documents of Kubeflow Trainer.
"""
