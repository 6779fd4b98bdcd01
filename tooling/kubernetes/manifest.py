"""`./inv manifest KIND`: the documents of a job as YAML, on standard output or in a file."""

from pathlib import Path

from tooling.basis import yaml
from tooling.basis.errors import UsageError
from tooling.basis.files import write_atomic
from tooling.basis.say import Say
from tooling.kubernetes.operators import Job
from tooling.kubernetes.request import warnings


def write(job: Job, output: str, say: Say) -> None:
    """Write the manifest to the file `output`, or to standard output if `output` is empty. Raises UsageError."""
    text = yaml.render(job.documents())
    for warning in warnings(job):
        say(f"warning: {warning}")
    if not output:
        print(text, end="")
        return
    try:
        write_atomic(Path(output), text)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written ({error.strerror}): choose another file") from error
    say(f"wrote {output}: kubectl create -f {output}")
