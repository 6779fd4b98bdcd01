"""Record the fields of TrainingArguments and Seq2SeqTrainingArguments of many releases of transformers.

`python tests/image/record_fields.py FOLDER...` prints JSON: each field with the first and the last release that
has it, and its default. Each FOLDER is an unpacked wheel whose name ends with the release:

    pip download --no-deps transformers==4.57.1 && unzip transformers-4.57.1-*.whl -d transformers-4.57.1
"""

import ast
import json
import sys
from pathlib import Path

FILES = {"training_args": "TrainingArguments", "training_args_seq2seq": "Seq2SeqTrainingArguments"}


def fields(source: str, name: str) -> dict[str, str | None]:
    """The own fields of a class that can be passed to it, and their defaults as Python's literals."""
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    (arguments,) = (node for node in classes if node.name == name)
    found = {}
    for node in arguments.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        options = {one.arg: one.value for one in getattr(node.value, "keywords", ())}
        if "init" not in options:
            found[node.target.id] = ast.unparse(options["default"]) if "default" in options else None
    return found


def main(folders: list[str]) -> None:
    recorded: dict[str, list[str | None]] = {}
    releases = {tuple(map(int, name.rpartition("-")[2].split("."))): Path(name) for name in folders}
    for release, folder in sorted(releases.items()):
        version = ".".join(map(str, release))
        for file, kind in FILES.items():
            for name, default in fields((folder / "transformers" / f"{file}.py").read_text(), kind).items():
                recorded[name] = [recorded.get(name, [version])[0], version, default]
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(recorded.items()))
    sys.stdout.write(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
