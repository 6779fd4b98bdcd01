"""The name of a repository in a registry."""

from __future__ import annotations

import pytest

from tooling.basis.errors import UsageError
from tooling.image.registry import Target


@pytest.mark.parametrize(
    ("text", "host", "name"),
    [
        ("localhost:5000/stack", "localhost:5000", "stack"),
        ("127.0.0.1:5000/team/stack", "127.0.0.1:5000", "team/stack"),
        ("registry.example/team/cpu-train_stack", "registry.example", "team/cpu-train_stack"),
        ("registry:5000/stack", "registry:5000", "stack"),
    ],
)
def test_a_registry_is_a_host_and_a_name(text: str, host: str, name: str) -> None:
    assert Target.parse(text) == Target(host, name)


@pytest.mark.parametrize(
    "text",
    ["stack", "team/stack", "registry.example/Stack", "registry.example/a:tag", "http://h.example/a", "h.x/"],
)
def test_another_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="expected HOST"):
        Target.parse(text)
