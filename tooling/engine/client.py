"""Connections to the engine's API. No other module opens them.

All other access uses Docker's command line. Both must reach the same engine, so this module follows the rules of
the command line for endpoints and certificates.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import docker
import docker.api.client
from docker.context.config import get_current_context_name
from docker.errors import TLSParameterError
from docker.tls import TLSConfig
from requests.utils import get_environ_proxies

from tooling.basis.errors import UsageError

TIMEOUT_SECONDS = 60


class _Certificates(TLSConfig):
    """Docker's certificates for the engine at `endpoint`.

    By default, requests prefers the authority in REQUESTS_CA_BUNDLE to the engine's authority.
    """

    def __init__(self, endpoint: str, **options: Any) -> None:
        super().__init__(**options)
        self._url = endpoint.replace("tcp:", "https:")

    def configure_client(self, client: docker.APIClient) -> None:
        super().configure_client(client)
        client.trust_env = False
        client.proxies = get_environ_proxies(self._url)


def connect(
    endpoint: str, timeout: int = TIMEOUT_SECONDS, environ: Mapping[str, str] = os.environ
) -> docker.DockerClient:
    """A client of the engine at `endpoint`, with TLS if the user configured it for this engine.

    Raises UsageError if the certificates are missing, or if `endpoint` is not an address.
    """
    tls = (
        _tls(endpoint, environ) if endpoint.startswith(("tcp:", "http")) else None
    )  # a socket and ssh need no TLS
    # The user's ssh with its configuration, keys and known hosts, as for the command line.
    by_ssh = endpoint.startswith("ssh:")
    if by_ssh:
        _import_ssh()
    try:
        return docker.DockerClient(base_url=endpoint, timeout=timeout, tls=tls or False, use_ssh_client=by_ssh)
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
            vars(docker.api.client)["SSHHTTPAdapter"] = import_module("docker.transport.sshconn").SSHHTTPAdapter
        finally:
            del sys.modules["paramiko"]


def wants_tls(environ: Mapping[str, str]) -> bool:
    """Whether DOCKER_TLS_VERIFY is set to any non-empty value, as for the command line."""
    return bool(environ.get("DOCKER_TLS_VERIFY"))


def _tls(endpoint: str, environ: Mapping[str, str]) -> _Certificates | None:
    if not environ.get("DOCKER_HOST") and not wants_tls(environ):
        return _tls_of_context(endpoint, environ)
    if not wants_tls(environ):
        return None
    folder = Path(environ.get("DOCKER_CERT_PATH") or environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        return _Certificates(
            endpoint,
            client_cert=(str(folder / "cert.pem"), str(folder / "key.pem")),
            ca_cert=str(folder / "ca.pem"),
            verify=True,
        )
    except TLSParameterError:
        raise UsageError(
            f"DOCKER_TLS_VERIFY is set, but {folder} does not have ca.pem, cert.pem and key.pem: "
            "set DOCKER_CERT_PATH to the folder that has them"
        ) from None


def _tls_of_context(endpoint: str, environ: Mapping[str, str]) -> _Certificates | None:
    """The certificates of the context, from Docker's files. docker.context finds none without a config.json."""
    name = environ.get("DOCKER_CONTEXT") or get_current_context_name()
    identifier = hashlib.sha256(name.encode()).hexdigest()
    contexts = Path(environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "contexts"
    described = contexts / "meta" / identifier / "meta.json"
    if not described.is_file():  # as for the context "default"
        return None
    engine = json.loads(described.read_text(encoding="utf-8"))["Endpoints"]["docker"]
    skips_verification = engine.get("SkipTLSVerify", False)
    files = [contexts / "tls" / identifier / "docker" / name for name in ("ca.pem", "cert.pem", "key.pem")]
    ca, cert, key = (str(path) if path.is_file() else None for path in files)
    if not (ca or cert or skips_verification):
        return None
    own = (cert, key) if cert and key else None
    return _Certificates(endpoint, client_cert=own, ca_cert=ca, verify=not skips_verification)
