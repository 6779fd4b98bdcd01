"""`./inv up --print-compose`: a cluster as a Compose file that needs neither this checkout nor ./inv. Pure."""

from typing import Any

from tooling.basis import yaml
from tooling.basis.paths import COMPOSE

# What both the service that is extended and the one that extends it may have: the second adds to the first.
_MERGED = ("environment",)


def plain(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document of `compose.document`, with the services that it extends in it, and without ./inv's labels.

    ./inv manages what has its labels, and would remove these containers with ./inv down.
    """
    services = {key: _complete(service) for key, service in document["services"].items()}
    networks = {
        key: {k: v for k, v in network.items() if k != "labels"} for key, network in document["networks"].items()
    }
    return {"name": name, "services": services, "networks": networks}


def _complete(service: dict[str, Any]) -> dict[str, Any]:
    extended = yaml.read(COMPOSE / service["extends"]["file"])["services"][service["extends"]["service"]]
    own = {key: value for key, value in service.items() if key not in ("extends", "labels")}
    merged = {key: {**extended[key], **own.get(key, {})} for key in _MERGED if key in extended}
    return {**extended, **own, **merged}
