"""The certificates for an engine's API, chosen as Docker's command line does. Only `connect` imports them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import docker
from docker.context.config import get_current_context_name
from docker.errors import TLSParameterError
from docker.tls import TLSConfig
from requests.utils import get_environ_proxies

from cpu_train_stack.cli.errors import UsageError
from tooling.engine.client import wants_tls


class Certificates(TLSConfig):
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


def find(endpoint: str, environ: Mapping[str, str]) -> Certificates | None:
    """The certificates that the user configured for the engine. Raises UsageError if one is missing."""
    if not environ.get("DOCKER_HOST") and not wants_tls(environ):
        return _tls_of_context(endpoint, environ)
    if not wants_tls(environ):
        return None
    folder = Path(environ.get("DOCKER_CERT_PATH") or environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    try:
        return Certificates(
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


def _tls_of_context(endpoint: str, environ: Mapping[str, str]) -> Certificates | None:
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
    return Certificates(endpoint, client_cert=own, ca_cert=ca, verify=not skips_verification)
