"""`./inv manifest KIND`: the documents of a job or a runtime as YAML, on standard output or in a file."""

from pathlib import Path

from tooling.basis import yaml
from tooling.basis.errors import UsageError
from tooling.basis.files import write_atomic
from tooling.basis.say import say
from tooling.image import sign
from tooling.kubernetes.operators import Manifest
from tooling.kubernetes.request import Request, pod_warnings, warnings


def write(wanted: Manifest, output: str) -> None:
    """Write the manifest to the file `output`, or to standard output if `output` is empty. Raises UsageError."""
    text = yaml.render(wanted.documents())
    sign.verify_with(wanted.key, wanted.reference)
    for warning in warnings(wanted) if isinstance(wanted, Request) else pod_warnings(wanted):
        say(f"warning: {warning}")
    if not output:
        print(text, end="")
        return
    try:
        write_atomic(Path(output), text)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written ({error.strerror}): choose another file") from error
    say(f"wrote {output}: kubectl create -f {output}")
