"""`sshd [--keys FOLDER] [--port N]`: lets a launcher elsewhere start ranks in this container, over ssh.

Runs as any named user but root, without capabilities: it can serve that user alone. The keys are mounted, none is
in the image.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from entrypoints import contract
from entrypoints.cli.errors import UsageError
from entrypoints.cli.options import Parser, port_number
from entrypoints.launch.mpi import ssh

SERVER = "/usr/sbin/sshd"


def main(argv: list[str]) -> int:
    """Become OpenSSH's server. Raises UsageError for a folder of keys that it could not serve with."""
    parser = Parser("sshd", "Let mpirun of another container start ranks in this one, over ssh.")
    parser.add_argument("--keys", type=Path, default=Path(ssh.DEFAULT_KEYS), metavar="FOLDER",
        help="authorized_keys and a host key, mounted (default: %(default)s)")  # fmt: skip
    parser.add_argument(
        "--port", type=port_number, default=contract.SSH_PORT, help="to listen at (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    if os.getuid() == 0:
        raise UsageError("sshd: this is root, expected another user: ranks do not run as root; leave out --user")
    keys = ssh.copy_keys(options.keys)
    config = keys / "sshd_config"
    config.write_text(ssh.server_config(keys, options.port), encoding="utf-8")
    sys.stdout.flush()
    os.execv(SERVER, [SERVER, "-D", "-e", "-f", str(config)])  # noqa: S606 - no shell is the point
