"""Findings about a host and its Docker, as test data."""

from dataclasses import replace

from tooling.engine.find import EngineFacts, EngineHost, Findings

BOOKWORM = EngineHost("debian", 12, "Debian GNU/Linux 12 (bookworm)", root=True, systemd=False)
FACTS = EngineFacts("26.1.5+dfsg1", "/var/lib/docker", 2, "overlay2", 2)
NOTHING = Findings(problem="no such file")
COMPLETE = Findings(
    engine=FACTS,
    buildkit="v0.0.0+unknown",
    client="26.1.5+dfsg1",
    compose="2.26.1-4",
    buildx="0.13.1+ds1",
    dockerd="Docker version 26.1.5+dfsg1, build 411e817",
    mmdebstrap="/usr/bin/mmdebstrap",
)
STOPPED = replace(COMPLETE, engine=None, buildkit=None, problem="Cannot connect to the Docker daemon")
