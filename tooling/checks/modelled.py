"""Runs the image's kernels on CPUs without their instructions: compiled with models of AVX-512 and AMX.

kernels/avx512_model.hpp stands for AVX-512 with AVX2, kernels/amx_model.hpp for AMX with AVX-512.
"""

import re
from pathlib import Path

from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.files import write_atomic
from cpu_train_stack.machine import cpus
from tooling.basis.paths import IMAGES
from tooling.engine import docker
from tooling.image import build, recipe
from tooling.pins import parse

STAGE = "compiled-kernels"
LIBRARY = "libkernels.so"
LIMIT_SECONDS = 900.0
_AVX512 = "-include /kernels/avx512_model.hpp -mavx2 -mfma -Wno-psabi"


def lacks_avx512() -> bool:
    """Whether this machine's CPU lacks instructions of the kernels other than AMX."""
    return cpus.read_model().bf16 == cpus.EMULATED


def compiled(folder: Path, tag: str, amx: bool) -> Path:
    """The library with the models that this machine needs, in `folder`. `amx`: with the model of AMX, too.

    `tag`: of the image that has the compiler, which is removed.
    """
    folder.chmod(0o777)
    options = [_AVX512] if lacks_avx512() else []
    build.rebuild(parse.load().pin(), tag, f"--target={STAGE}")
    try:
        volumes = f"--volume={IMAGES / 'scripts'}:/scripts:ro", f"--volume={recipe.KERNELS}:/kernels:ro"
        argv = ["/scripts/build-kernels", "/kernels", "/made", " ".join([*options, *["-DAMX_MODEL"] * amx])]
        done = docker.run(tag, argv, [*volumes, f"--volume={folder}:/made"], limit_seconds=LIMIT_SECONDS)
    finally:  # the layers stay in the build cache
        docker.remove_image(tag)
    if done.returncode != 0:
        raise UsageError(f"the kernels did not compile with the models: {argv[0]} exited with {done.returncode}")
    return folder / LIBRARY


def mounts(library: Path, amx: bool) -> tuple[str, ...]:
    """The arguments of Docker for a container that uses the library: its /proc/cpuinfo lists the instructions."""
    added = "avx512f avx512bw avx512dq avx512vl avx512_bf16" + (" amx_tile amx_bf16" if amx else "")
    seen = library.with_name(f"cpuinfo-{'amx' if amx else 'avx512'}")
    cpuinfo = Path("/proc/cpuinfo").read_text()
    write_atomic(seen, re.sub(r"^flags\t.*$", rf"\g<0> {added}", cpuinfo, flags=re.MULTILINE))
    inside = f"{recipe.site_packages(parse.load().pin())}/cpu_train_stack.libs/{LIBRARY}"
    return f"--volume={library}:{inside}:ro", f"--volume={seen}:/proc/cpuinfo:ro"
