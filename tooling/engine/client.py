"""Connections to the engine's API. No other module opens them.

All other access uses Docker's command line. Both must reach the same engine, so this module follows the rules of
the command line for endpoints and certificates.
"""

import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from cpu_train_stack.cli.errors import UsageError

if TYPE_CHECKING:
    from docker import DockerClient

TIMEOUT_SECONDS = 60


def connect(
    endpoint: str, timeout: int = TIMEOUT_SECONDS, environ: Mapping[str, str] = os.environ
) -> "DockerClient":
    """A client of the engine at `endpoint`, with TLS if the user configured it for this engine.

    Raises UsageError if the certificates are missing, or if `endpoint` is not an address.
    """
    from docker import DockerClient  # takes 0.14 s to import

    from tooling.engine import certificates

    # A socket and ssh need no TLS.
    tls = certificates.find(endpoint, environ) if endpoint.startswith(("tcp:", "http")) else None
    # The user's ssh with its configuration, keys and known hosts, as for the command line.
    by_ssh = endpoint.startswith("ssh:")
    if by_ssh:
        _import_ssh()
    try:
        return DockerClient(base_url=endpoint, timeout=timeout, tls=tls or False, use_ssh_client=by_ssh)
    except ValueError as error:  # such as an invalid port
        shown = re.sub("//.*@", "//", endpoint)  # without a password
        raise UsageError(
            f"{shown} is not an address of an engine: {error}: correct DOCKER_HOST, or the context"
        ) from None


def _import_ssh() -> None:
    """Import docker's adapter for ssh. It imports paramiko, but uses it only without the user's ssh."""
    if "paramiko" not in sys.modules:
        sys.modules["paramiko"] = ModuleType("paramiko")
        try:
            adapter = import_module("docker.transport.sshconn").SSHHTTPAdapter
            vars(import_module("docker.api.client"))["SSHHTTPAdapter"] = adapter
        finally:
            del sys.modules["paramiko"]


def wants_tls(environ: Mapping[str, str]) -> bool:
    """Whether DOCKER_TLS_VERIFY is set to any non-empty value, as for the command line."""
    return bool(environ.get("DOCKER_TLS_VERIFY"))
