"""The syntax of Kubernetes names, labels and quantities. Every error is a UsageError with one line."""

import re

from cpu_train_stack.cli.errors import UsageError
from tooling.image.registry import Target

LABEL_LENGTH, SUBDOMAIN_LENGTH = 63, 253

_DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_DNS_1123 = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_SECRET_KEY = re.compile(r"(?!\.\.|\.\Z)[-._a-zA-Z0-9]{1,253}")
_QUANTITY = re.compile(r"(?P<number>[1-9][0-9]*)(?P<unit>[KMGT]i|[kMGT])")
_UNITS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def job_name(text: str, longest_suffix: str) -> str:
    """A name that is also valid in the names of the job's pods (DNS-1035, 63 characters with the suffix)."""
    longest = LABEL_LENGTH - len(longest_suffix)
    if not _DNS_1035.fullmatch(text) or len(text) > longest:
        raise UsageError(
            f"--name is {text!r}, expected at most {longest} lower-case letters, digits and '-', "
            f"starting with a letter and not ending with '-': pods are named NAME{longest_suffix}"
        )
    return text


def dns_label(flag: str, text: str) -> str:
    """The name of a namespace, queue or scheduler (DNS-1123 label)."""
    if not _DNS_1123.fullmatch(text) or len(text) > LABEL_LENGTH:
        raise UsageError(f"{flag} is {text!r}, expected lower-case letters, digits and '-', 63 at most")
    return text


def resource_name(flag: str, text: str, longest: int = SUBDOMAIN_LENGTH) -> str:
    """The name of a runtime, claim or secret (DNS-1123 subdomain)."""
    if not _is_subdomain(text) or len(text) > longest:
        raise UsageError(
            f"{flag} is {text!r}, expected at most {longest} lower-case letters, digits, '-' and '.', as kubectl "
            "shows it"
        )
    return text


def _is_subdomain(text: str) -> bool:
    return len(text) <= SUBDOMAIN_LENGTH and all(_DNS_1123.fullmatch(part) for part in text.split("."))


def label(flag: str, text: str) -> tuple[str, str]:
    """KEY=VALUE of a node's label. The key may begin with a domain and a slash, the value may be empty."""
    key, equals, value = text.partition("=")
    domain, slash, name = key.rpartition("/")
    valid = equals and _LABEL.fullmatch(name) and len(name) <= LABEL_LENGTH
    valid = valid and (not slash or _is_subdomain(domain))
    valid = valid and (not value or _LABEL.fullmatch(value)) and len(value) <= LABEL_LENGTH
    if not valid:
        raise UsageError(
            f"{flag} is {text!r}, expected KEY=VALUE of a node's label, as kubectl get nodes shows it"
        )
    return key, value


def secret_key(flag: str, text: str) -> tuple[str, str]:
    """SECRET/KEY: a secret's name and the key in it."""
    secret, slash, key = text.partition("/")
    if not slash or not _SECRET_KEY.fullmatch(key):
        raise UsageError(f"{flag}: found {text!r}, expected SECRET/KEY, as kubectl describe secret shows them")
    return resource_name(flag, secret), key


def memory(flag: str, text: str) -> int:
    """A quantity of memory in bytes."""
    match = _QUANTITY.fullmatch(text)
    if not match:
        raise UsageError(
            f"{flag} is {repr(text) if text else 'missing'}, expected a quantity such as 128Gi or 64000M"
        )
    return int(match["number"]) * _UNITS[match["unit"]]


def image(text: str) -> str:
    """An image by its digest: a tag may move between the starts of two pods."""
    target, _, digest = text.partition("@")
    try:
        Target.parse(target)
    except UsageError:
        digest = ""
    if not _DIGEST.fullmatch(digest):
        raise UsageError(
            f"--image is {text!r}, expected HOST/NAME@sha256:… (./inv push writes it into image.lock.json)"
        )
    return text
