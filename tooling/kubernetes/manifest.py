"""`./inv manifest KIND`: the documents of a job or a runtime as YAML, on standard output or in a file."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from cpu_train_stack.cli.files import write_output
from cpu_train_stack.cli.say import say
from tooling.basis import yaml
from tooling.image import sign
from tooling.kubernetes import pods
from tooling.kubernetes.operators import Manifest
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import ManifestRequest, pod_warnings, warnings


def documents(wanted: Manifest) -> list[Document]:
    """The policy that isolates the pods, before they exist, and the documents of the job or runtime.

    A policy belongs to a namespace: a runtime of the cluster has none.
    """
    labels = wanted.pod_labels
    return [*([pods.network_policy(wanted, labels)] if labels else []), *wanted.documents()]


def write(wanted: Manifest, output: str) -> None:
    """Write the manifest to the file `output`, or to standard output if `output` is empty. Raises UsageError."""
    text = yaml.render(documents(wanted))
    sign.verify_with(wanted.key, wanted.reference)
    for warning in warnings(wanted) if isinstance(wanted, ManifestRequest) else pod_warnings(wanted):
        say(f"warning: {warning}")
    if not output:
        print(text, end="")
        return
    with _private() if wanted.env else nullcontext():
        write_output(Path(output), text, "--output")
    say(f"wrote {output}: kubectl create -f {shlex.quote(output)}")


@contextmanager
def _private() -> Iterator[None]:
    """Only their owner can read the files of the block."""
    mask = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(mask)
