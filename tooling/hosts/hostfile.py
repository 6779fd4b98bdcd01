"""The hosts of a job: `--hosts FILE`, in the grammar that the image's mpi-launch reads too. Pure, except read().

Ports, keys and jump hosts come from the ssh configuration.
"""

from pathlib import Path

from entrypoints.launch.mpi import hostfile
from entrypoints.launch.mpi.hostfile import Host
from tooling.basis.errors import UsageError


def read(path: Path) -> tuple[Host, ...]:
    """The hosts in the order of the lines: rank 0 is on the first. Raises UsageError, one line."""
    try:
        return hostfile.parse(path.read_text(encoding="utf-8").splitlines(), "line", users=True)
    except FileNotFoundError:
        raise UsageError(
            f"--hosts {path} does not exist: expected a file with a host's name on each line"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hosts {path} cannot be read: {error}") from None
    except ValueError as error:
        raise UsageError(f"--hosts {path}: {error}") from None


def ranks(hosts: tuple[Host, ...], ranks_per_node: int | None) -> int:
    """Ranks on each host: `ranks_per_node`, else the slots of every line, else 1. Raises UsageError."""
    slots = {host.slots for host in hosts}
    if ranks_per_node is None:
        if len(slots) > 1:
            found = ", ".join(f"{host.name} {host.slots or 'none'}" for host in hosts)
            raise UsageError(
                f"slots differ ({found}): use the same number on every line, or pass --ranks-per-node"
            )
        return slots.pop() or 1
    if ranks_per_node < 1:
        raise UsageError(f"--ranks-per-node is {ranks_per_node}, expected 1 or more")
    for host in hosts:
        if host.slots is not None and host.slots < ranks_per_node:
            raise UsageError(
                f"--ranks-per-node is {ranks_per_node}, but {host.name} has slots={host.slots}: "
                "lower --ranks-per-node, or raise slots"
            )
    return ranks_per_node
