"""`./inv manifest KIND`: the documents of a job as YAML, on standard output or in a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from tooling.basis import yaml
from tooling.basis.errors import UsageError
from tooling.basis.files import write_atomic
from tooling.basis.say import Say
from tooling.kubernetes import mpijob, pytorchjob, trainjob
from tooling.kubernetes import request as requests
from tooling.kubernetes.pods import Document
from tooling.kubernetes.request import Options, Request

KINDS: Mapping[str, Callable[[Request], list[Document]]] = {
    "pytorchjob": pytorchjob.documents,
    "trainjob": trainjob.documents,
    "mpijob": mpijob.documents,
}


def render(request: Request) -> str:
    """The manifest: a YAML document an object, in the order in which they are to be made."""
    documents = KINDS[request.kind](request)
    return yaml.render(documents)


def run(kind: str, options: Options, output: str, say: Say) -> None:
    """Writes the manifest to `output`, standard output where that is empty. Raises UsageError."""
    request = requests.parse(kind, options)
    text = render(request)
    for warning in requests.warnings(request):
        say(f"warning: {warning}")
    if not output:
        print(text, end="")
        return
    try:
        write_atomic(Path(output), text)
    except OSError as error:
        raise UsageError(f"--output {output} cannot be written ({error.strerror}): name another file") from error
    say(f"wrote {output}: kubectl create -f {output}")
