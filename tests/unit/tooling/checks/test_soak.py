"""`./inv dev soak`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tooling.checks import soak
from tooling.checks.soak import SoakJob, SoakShape
from tooling.cluster.compose import ClusterSpec
from tooling.engine.api import Engine
from tooling.image.build import Image
from tooling.image.choice import Choice


def test_all_jobs_run_the_same_image_although_a_build_moves_its_tag(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    image, used = Image("cpu-train-stack:2.13", "sha256:1", 0, built=False, seconds=0.0), []

    def run_one(spec: ClusterSpec, _docker: Engine, number: int) -> SoakJob:
        used.append(spec.image)
        return SoakJob(number, 0, right=True, seconds=1.0, left=())

    monkeypatch.setattr(Choice, "ensure", lambda _choice: (Engine("unix:///sock", 1), image))
    monkeypatch.setattr(soak, "run_one", run_one)
    monkeypatch.setattr(soak, "FOLDER", tmp_path / "soak")
    soak.run(None, 2, SoakShape())
    assert used == ["sha256:1"] * 2
    assert json.loads((tmp_path / "soak" / "result.json").read_text())["image"] == "sha256:1"
