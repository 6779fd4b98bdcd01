"""The user's proxies in a build."""

import os
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.image import build, proxies


def test_apt_gets_the_users_proxies_with_a_scheme_and_in_lower_case() -> None:
    environ = {"HTTP_PROXY": "proxy.example:3128", "https_proxy": "http://u:p@proxy.example", "NO_PROXY": "a,.b"}
    assert proxies.of(environ) == {
        "http_proxy": "http://proxy.example:3128",
        "https_proxy": "http://u:p@proxy.example",
        "no_proxy": "a,.b",
    }
    assert proxies.of({"HTTP_PROXY": "", "PATH": "/bin"}) == {}
    assert proxies.of({"http_proxy": "", "HTTP_PROXY": "proxy.example:3128"}) == {}  # switched off


def test_a_value_that_is_no_url_is_named_without_its_password() -> None:
    with pytest.raises(UsageError, match="the variable https_proxy is not the URL of a proxy") as refused:
        proxies.in_builds({"HTTPS_PROXY": "http://user:s3cret[w@proxy.example:3128"})
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("local", ["localhost:3128", "http://127.0.0.1:3128", "http://[::1]:3128", "127.1.2.3:1"])
def test_a_build_gets_no_proxy_that_only_the_host_can_reach(local: str) -> None:
    assert proxies.in_builds({"http_proxy": local, "https_proxy": "proxy:1"}) == {"https_proxy": "http://proxy:1"}


def test_a_build_reads_a_proxy_from_its_environment_and_not_from_its_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", "user:s3cret@proxy.example:3128")
    monkeypatch.setattr(build, "CACHE", tmp_path)
    seen = tmp_path / "seen"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$*" "$http_proxy" > {seen}\n')
    program.chmod(0o755)
    build.buildx([os.fspath(program)], "an image", "test")
    arguments, proxy = seen.read_text().splitlines()
    assert "--build-arg=http_proxy" in arguments.split()
    assert "s3cret" not in arguments
    assert proxy == "http://user:s3cret@proxy.example:3128"
