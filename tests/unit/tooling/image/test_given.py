"""--image: which file or name it is, and the image's ID in a file."""

import http.server
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from cpu_train_stack.cli.errors import UsageError
from tests.answers import answer, served
from tooling.engine.api import Engine
from tooling.image import given
from tooling.image.choice import Choice

MANIFEST = f"sha256:{8:064x}"
ID = "14547f534e4bbaa7fbc794c92ab425507c487373c53be64f919e10cf7557e02d"


def archive(path: Path, config: str, index: object = None, **others: object) -> str:
    manifest = {"Config": config, "RepoTags": ["cpu-train-stack:2.13"], "Layers": []}
    files = {"manifest.json": [manifest], "index.json": index, **others}
    with tarfile.open(path, "w") as stream:
        for name, document in files.items():
            if document is not None:
                text = json.dumps(document).encode()
                member = tarfile.TarInfo(name)
                member.size = len(text)
                stream.addfile(member, io.BytesIO(text))
    return str(path)


class _Engine(http.server.BaseHTTPRequestHandler):
    """An engine with containerd's image store: an image's ID is the digest of its manifest."""

    loaded: ClassVar[list[str]] = []
    archive: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].removeprefix("/v1.45")
        image = {"Id": MANIFEST, "Size": 1, "Config": {}, "RootFS": {"Layers": []}}
        if path == "/version":
            answer(self, {"ApiVersion": "1.45"})
        elif path == f"/images/{MANIFEST}/json" and MANIFEST in self.loaded:
            answer(self, image)
        else:
            answer(self, {"message": f"No such image: {path}"}, 404)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        while "Content-Length" not in self.headers and (size := int(self.rfile.readline(), 16)):
            text += self.rfile.read(size)
            self.rfile.readline()
        type(self).archive = text
        self.loaded.append(MANIFEST)
        answer(self, {"stream": f"Loaded image ID: {MANIFEST}\n"})

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def engine() -> Iterator[Engine]:
    _Engine.loaded.clear()
    with served(_Engine) as address:
        yield Engine(f"tcp://{address}", cpus=1)


@pytest.mark.parametrize("index", [{"manifests": [{"digest": MANIFEST}]}, None], ids=["Docker 25", "older"])
def test_a_file_is_found_in_containerds_image_store(index: object, engine: Engine, tmp_path: Path) -> None:
    image = archive(tmp_path / "stack.tar", f"{ID}.json", index)
    assert given.fetch(image, engine).tag == MANIFEST
    assert _Engine.loaded == [MANIFEST]


def test_an_image_in_a_file_takes_no_tag(engine: Engine, tmp_path: Path) -> None:
    named = {"io.containerd.image.name": "cpu-train-stack:2.13", "org.opencontainers.image.ref.name": "2.13"}
    index = {"manifests": [{"digest": MANIFEST, "annotations": named}]}
    layer = {"blob": "x" * 3000}
    image = archive(
        tmp_path / "stack.tar", ID, index, repositories={"cpu-train-stack": {"2.13": "x"}}, layer=layer
    )
    given.fetch(image, engine)
    assert b"cpu-train-stack" not in _Engine.archive
    with tarfile.open(fileobj=io.BytesIO(_Engine.archive)) as loaded:
        contents = {member.name: json.load(loaded.extractfile(member) or io.BytesIO()) for member in loaded}
    assert contents == {
        "manifest.json": [{"Config": ID, "Layers": []}],
        "index.json": {"manifests": [{"digest": MANIFEST}]},
        "layer": layer,
    }


def test_links_stay_links_and_other_spellings_of_the_lists_take_no_tag(engine: Engine, tmp_path: Path) -> None:
    """podman writes a link for each layer, before the list."""
    path = tmp_path / "stack.tar"
    named = [{"Config": ID, "RepoTags": ["cpu-train-stack:2.13"], "Layers": []}]
    archive(path, ID, layer={"blob": "x" * 3000}, **{"./manifest.json": named, "a/../repositories": {"a": "b"}})
    with tarfile.open(path, "a") as stream:
        link = tarfile.TarInfo("id/layer.tar")
        link.type, link.linkname = tarfile.SYMTYPE, "../layer"
        stream.addfile(link)
    given.fetch(str(path), engine)
    assert b"cpu-train-stack:2.13" not in _Engine.archive
    with tarfile.open(fileobj=io.BytesIO(_Engine.archive)) as loaded:
        names = {member.name: member.linkname for member in loaded}
    assert names == {"manifest.json": "", "layer": "", "id/layer.tar": "../layer"}


def test_a_list_that_is_a_link_is_refused(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "stack.tar"
    archive(path, ID)
    with tarfile.open(path, "a") as stream:
        link = tarfile.TarInfo("./index.json")
        link.type, link.linkname = tarfile.SYMTYPE, "manifest.json"
        stream.addfile(link)
    with pytest.raises(UsageError, match=r"\./index\.json is a link"):
        given.fetch(str(path), engine)


def test_a_file_of_the_current_folder_is_not_taken_for_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("team-stack", "team/stack"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        archive(tmp_path / name, ID)
        monkeypatch.chdir(tmp_path)
        assert given.name(name) == name
        assert given.name(f"./{name}") == f"sha256:{ID}"


def test_an_image_that_containerds_image_store_has_is_not_loaded_again(engine: Engine, tmp_path: Path) -> None:
    image = archive(tmp_path / "stack.tar", f"blobs/sha256/{ID}", {"manifests": [{"digest": MANIFEST}]})
    for _ in range(2):
        assert given.fetch(image, engine).id == MANIFEST
    assert _Engine.loaded == [MANIFEST]


@pytest.mark.parametrize("config", [f"blobs/sha256/{ID}", f"{ID}.json"], ids=["Docker 25", "older"])
def test_the_id_of_the_image_in_a_file_is_its_name_in_the_engine(config: str, tmp_path: Path) -> None:
    image = archive(tmp_path / "stack.tar", config)
    assert given.name(image) == f"sha256:{ID}"
    assert Choice(image=image).reference == f"sha256:{ID}"


@pytest.mark.parametrize("image", ["a$b", "-h", "a b", "$(id)", ""])
def test_a_name_that_no_image_can_have_is_refused(image: str) -> None:
    with pytest.raises(UsageError, match=r"expected \./FILE, or the name of an image"):
        given.name(image)


@pytest.mark.parametrize("image", ["registry.example:5000/team/stack:1", "cpu-train-stack:2.13", f"sha256:{ID}"])
def test_anything_else_is_a_name(image: str) -> None:
    assert given.name(image) == image


@pytest.mark.parametrize(
    ("name", "found"), [("missing.tar", "is missing"), ("", "is a folder"), ("text.tar", "is not an archive")]
)
def test_a_file_that_is_no_exported_image_is_one_line(name: str, found: str, tmp_path: Path) -> None:
    (tmp_path / "text.tar").write_text("no archive")
    with pytest.raises(UsageError, match=found) as refused:
        given.name(str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_an_image_cannot_be_combined_with_what_builds_one() -> None:
    with pytest.raises(UsageError, match="--image names the image: do not combine it with --pin"):
        Choice(pin="2.13", image="stack.tar")
    with pytest.raises(UsageError, match=r"--image-lock names the image: .*--image "):
        Choice(image_lock="image.lock.json", image="stack.tar")


def test_one_line_names_every_mistake_in_the_options_of_an_image() -> None:
    with pytest.raises(UsageError, match=r"do not combine it with --pin.*; found --key .*; --engine is 'lxc'"):
        Choice(pin="2.13", image="stack.tar", key="cosign.pub", engine="lxc")


def _named(more: dict[str, object]) -> bytes:
    return json.dumps([{"Config": ID, "Layers": [], **more}]).encode()


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param({"name": "manifest.json", "text": _named({"repoTAGS": ["evil:1"]})}, id="another case"),
        pytest.param(
            {"name": "manifest.json", "text": _named({"RepoTag\u017f": ["evil:1"]})}, id="a folded letter"
        ),
        pytest.param(
            {
                "name": "x",
                "text": _named({"RepoTags": ["evil:1"]}),
                "pax_headers": {"path": "manifest.json\0x"},
            },
            id="a zero byte ends the name",
        ),
        pytest.param(
            {
                "name": "x",
                "text": _named({"RepoTags": ["evil:1"]}),
                "pax_headers": {"path": "manifest.json", "GNU.sparse.name": "x"},
            },
            id="two names in the header",
        ),
    ],
)
def test_what_an_engine_may_take_for_the_list_takes_no_tag(
    extra: dict[str, Any], engine: Engine, tmp_path: Path
) -> None:
    """Go compares keys without case, and reads some headers in other ways than Python."""
    path = tmp_path / "stack.tar"
    archive(path, ID)
    with tarfile.open(path, "a") as stream:
        member = tarfile.TarInfo(extra["name"])
        member.size, member.pax_headers = len(extra["text"]), extra.get("pax_headers", {})
        stream.addfile(member, io.BytesIO(extra["text"]))
    try:
        given.fetch(str(path), engine)
    except UsageError:
        return
    with tarfile.open(fileobj=io.BytesIO(_Engine.archive)) as loaded:
        for one in loaded:
            assert one.name == "x" or b"evil" not in (loaded.extractfile(one) or io.BytesIO()).read()
            assert not one.pax_headers


def test_a_file_behind_a_link_is_refused(engine: Engine, tmp_path: Path) -> None:
    """An engine unpacks it as manifest.json."""
    path = tmp_path / "stack.tar"
    archive(path, ID)
    with tarfile.open(path, "a") as stream:
        link = tarfile.TarInfo("x")
        link.type, link.linkname = tarfile.SYMTYPE, "."
        stream.addfile(link)
        member = tarfile.TarInfo("x/manifest.json")
        member.size = len(text := _named({"RepoTags": ["evil:1"]}))
        stream.addfile(member, io.BytesIO(text))
    with pytest.raises(UsageError, match=r"x/manifest\.json is a link, or in one"):
        given.fetch(str(path), engine)


@pytest.mark.parametrize(
    ("config", "digest"), [(f"{ID}$x", MANIFEST), ("../x", MANIFEST), (ID, "a b"), (ID, 5), (ID, None)]
)
def test_an_id_that_no_image_has_is_refused(config: str, digest: object, tmp_path: Path) -> None:
    image = archive(tmp_path / "stack.tar", config, {"manifests": [{"digest": digest}]})
    with pytest.raises(UsageError, match="is not an archive with one image"):
        given.name(image)
