"""A program `ssh` that runs the commands on this machine, for tests of jobs on hosts."""

from pathlib import Path

import pytest

# `settings`: what -G prints. `settings.sh`: what it does before.
# `check`: the exit code of -O check. `connect`: what a new connection does first.
SCRIPT = """\
#!/bin/sh
echo "$@" >>{folder}/calls
for word; do
  case $word in
    -G) . {folder}/settings.sh; cat {folder}/settings; exit;;
    -O) . {folder}/check; exit;;
    -oControlMaster=yes) . {folder}/connect;;
  esac
done
while [ "$1" != -- ]; do shift; done
exec sh -c "exec $3"
"""


class FakeSsh:
    """Replaces ssh on PATH, and records its calls."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder / "ssh"
        self.folder.mkdir()
        (self.folder / "ssh").write_text(SCRIPT.format(folder=self.folder))
        (self.folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", str(self.folder), prepend=":")
        self.settings(hostname="10.0.0.7", port=22)
        self.set("check", "exit 255")
        self.set("settings.sh", "")
        self.set("connect", "")

    def set(self, file: str, text: str) -> None:
        (self.folder / file).write_text(f"{text}\n")

    def settings(self, **values: object) -> None:
        self.set("settings", "\n".join(f"{key} {value}" for key, value in values.items()))

    @property
    def calls(self) -> list[str]:
        return (self.folder / "calls").read_text().splitlines()
