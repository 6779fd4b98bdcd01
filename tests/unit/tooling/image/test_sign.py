"""What is checked in the provenance of a signed image."""

import base64
import json
from dataclasses import fields
from pathlib import Path

import pytest

from cpu_train_stack.cli.errors import UsageError
from tooling.cli import tasks_images
from tooling.hosts.job import Job
from tooling.image import sign
from tooling.image.choice import Choice
from tooling.kubernetes.operators import PyTorchJob

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


@pytest.mark.parametrize("found", [{}, {"resolvedDependencies": []}, {"resolvedDependencies": None}])
def test_a_provenance_without_the_commit_is_one_line(
    found: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    predicate = {"buildDefinition": {"buildType": sign.BUILD_TYPE, "externalParameters": {}, **found}}
    payload = base64.b64encode(json.dumps({"predicate": predicate}).encode()).decode()
    monkeypatch.setattr(sign, "_cosign", lambda *_: json.dumps({"payload": payload}))
    (tmp_path / "cosign.pub").write_text("key")
    with pytest.raises(UsageError, match=r": its provenance lacks .*, expected that of ./inv push --sign$"):
        tasks_images.verify.body((IMAGE,), str(tmp_path / "cosign.pub"))


@pytest.mark.parametrize("options", [Choice, Job, PyTorchJob])
def test_an_empty_key_accepts_no_image(options: type[Choice | Job | PyTorchJob]) -> None:
    default = {field.name: field.default for field in fields(options)}["key"]
    assert default is None
    sign.verify_with(None, IMAGE)
    with pytest.raises(UsageError, match="--key is missing, expected the file"):
        sign.verify_with("", IMAGE)
