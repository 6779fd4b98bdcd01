"""The user's HTTP proxies, for apt-get in a build and for mmdebstrap."""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from cpu_train_stack.cli.errors import UsageError

# apt-get reads the lower-case names only.
_NAMES = ("http_proxy", "https_proxy", "ftp_proxy")
_EXCEPTIONS = "no_proxy"


def of(environ: Mapping[str, str]) -> dict[str, str]:
    """The proxies under the names that apt-get reads. A value without a scheme, which apt-get refuses, gets http://."""
    values = {name: environ.get(name, environ.get(name.upper(), "")) for name in (*_NAMES, _EXCEPTIONS)}
    return {
        name: value if "://" in value or name == _EXCEPTIONS else f"http://{value}"
        for name, value in values.items()
        if value
    }


def in_builds(environ: Mapping[str, str]) -> dict[str, str]:
    """`of`, without proxies on this machine's loopback, which a build cannot reach. Raises UsageError.

    These names are predefined build arguments: an image and its history do not keep their values.
    """
    return {
        name: value for name, value in of(environ).items() if name == _EXCEPTIONS or not _is_local(name, value)
    }


def _is_local(name: str, proxy: str) -> bool:
    try:
        host = urlsplit(proxy).hostname or ""
    except ValueError as error:  # not printed: it may quote a password
        raise UsageError(
            f"the variable {name} is not the URL of a proxy, expected http://HOST:PORT: correct or unset it"
        ) from error
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.[0-9]+){3}", host))
