"""What ssh prints if it fails, and what it means. Pure."""

import re

from cpu_train_stack.cli import printable

# What ssh prints, and what it means. The first match applies. Groups of the pattern are fields of the text.
_CAUSES = {
    "HOST IDENTIFICATION HAS CHANGED": "the host key of {where} has CHANGED: it may be intercepted, or the host "
    "was reinstalled; if reinstalled, remove its old key with ssh-keygen -R",
    "Host key verification failed": "the host key of {where}, or of its jump host, is not known: log in to the "
    "host once with ssh, and verify its key",
    r"Permission denied \((?P<how>.*)\)": "{where} refuses your login ({how}): check your key, your agent and the "
    "user name",
    "Too many authentication failures": "{where} refuses your login after too many keys: name the right one with "
    "IdentityFile and IdentitiesOnly in ~/.ssh/config",
    r"Could not resolve hostname (?P<name>\S+): (?P<how>.*)": "{name} does not resolve ({how}): correct the name, "
    "or add it to ~/.ssh/config",
    "(?P<how>Connection refused|No route to host|Network is unreachable)": "{where} cannot be reached ({how}): "
    "check that the host is up and that sshd is running",
    r"No user exists for uid (?P<uid>\d+)": "uid {uid} has no account, and ssh needs one: add it to /etc/passwd",
    "timed out|not responding": "{where} does not answer within {seconds} s: check that the host is up",
    "closed by|reset by|Broken pipe": "{where} closed the connection: read the log of its sshd",
}


def shorten(text: str, limit: int = 200) -> str:
    """The text on one line."""
    line = printable.one_line(text)
    return line if len(line) <= limit else f"{line[:limit]}…"


def explain(message: str, where: str, seconds: int) -> str:
    """One line: why ssh failed, and what to do.

    `message`: what ssh printed. `where`: the address and port. `seconds`: how long ssh waited for an answer.
    """
    for pattern, text in _CAUSES.items():
        if found := re.search(pattern, message):
            return printable.one_line(text.format(where=where, seconds=seconds, **found.groupdict()))
    lines = message.strip().splitlines() or ["ssh failed without a message"]
    return f"{where}: {shorten(lines[-1])}"
