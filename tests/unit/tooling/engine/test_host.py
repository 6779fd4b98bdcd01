"""What is read of a host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tooling.engine.host import host_from, parse_os_release, read_host


def test_os_release_is_read_with_quotes_comments_and_blank_lines() -> None:
    text = "# comment\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n\nID=debian\nVERSION_ID='12'\nnonsense\n"
    assert parse_os_release(text) == {
        "PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)",
        "ID": "debian",
        "VERSION_ID": "12",
    }


@pytest.mark.parametrize(
    ("release", "version"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, 12),
        ({"ID": "ubuntu", "VERSION_ID": "24.04"}, 24),
        ({"ID": "debian"}, None),
    ],
    ids=["Debian 12", "Ubuntu 24.04", "Debian testing"],
)
def test_a_hosts_version_is_its_major_number(release: dict[str, str], version: int | None, tmp_path: Path) -> None:
    host = host_from(release, root=False, root_directory=tmp_path)
    assert (host.version, host.systemd, host.docker_ce, host.ca_certificates) == (version, False, False, False)


def test_a_hosts_marks_are_found_under_its_root(tmp_path: Path) -> None:
    for directory in ("run/systemd/system", "var/lib/dpkg/info", "etc/ssl/certs", "usr/lib"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "var/lib/dpkg/info/docker-ce.list").touch()
    (tmp_path / "etc/ssl/certs/ca-certificates.crt").touch()
    (tmp_path / "usr/lib/os-release").write_text("ID=debian\nVERSION_ID=12\n")
    host = read_host(tmp_path)
    assert (host.os_id, host.version, host.systemd, host.docker_ce, host.ca_certificates) == (
        *("debian", 12),
        *(True, True, True),
    )
