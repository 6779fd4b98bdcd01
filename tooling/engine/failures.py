"""The exceptions of the engine's API, imported at their first use: docker and requests take 0.14 s to import."""

import importlib
from typing import TYPE_CHECKING, Any

from cpu_train_stack.cli.errors import UsageError

if TYPE_CHECKING:
    from docker.errors import APIError, DockerException, NotFound
    from requests import RequestException, Timeout
    from urllib3.exceptions import HTTPError

    __all__ = ["APIError", "DockerException", "HTTPError", "NotFound", "RequestException", "Timeout"]

_MODULES = {
    "APIError": "docker.errors",
    "DockerException": "docker.errors",
    "HTTPError": "urllib3.exceptions",
    "NotFound": "docker.errors",
    "RequestException": "requests",
    "Timeout": "requests",
}


class EngineLostError(UsageError):
    """The engine does not answer. Code that watches a running job catches this error."""


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
