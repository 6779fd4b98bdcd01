"""What is checked in the provenance of a signed image."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from tooling.basis.errors import UsageError
from tooling.image import sign

IMAGE = "registry.example/stack@sha256:" + "1" * 64


@pytest.mark.parametrize("predicate", [{}, {"buildDefinition": {"buildType": "https://other.example/pipeline"}}])
def test_the_provenance_of_another_pipeline_is_refused(
    predicate: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same key may sign the images of several pipelines."""
    payload = base64.b64encode(json.dumps({"predicate": predicate}).encode()).decode()
    monkeypatch.setattr(sign, "_cosign", lambda *_: json.dumps({"payload": payload}))
    (tmp_path / "cosign.pub").write_text("key")
    with pytest.raises(UsageError, match=r"its provenance has the build type .*, expected 'urn:cpu-train-stack:"):
        sign.verify(IMAGE, str(tmp_path / "cosign.pub"))
