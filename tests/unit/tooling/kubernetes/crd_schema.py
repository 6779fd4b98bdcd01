"""A custom resource checked against the schema of its definition (CRD), as an API server does on `kubectl create`.

Covers what the schemas of the three operators use: unknown fields, types, required fields, enumerations, patterns,
bounds, unique keys of lists, and the rules in CEL. A rule with `oldSelf` applies to updates only.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celpy
import yaml
from celpy.adapter import json_to_cel

Schema = dict[str, Any]
TYPES: dict[str, tuple[type, ...]] = {
    "array": (list,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "object": (dict,),
    "string": (str,),
}
# A custom resource's own fields that no definition lists.
METADATA = {"name", "namespace", "labels", "annotations"}


def read(folder: Path) -> dict[tuple[str, str], Schema]:
    """The schemas of all definitions in `folder`, by API version and kind."""
    found: dict[tuple[str, str], Schema] = {}
    for file in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text(encoding="utf-8")):
            if (document or {}).get("kind") != "CustomResourceDefinition":
                continue
            spec = document["spec"]
            for version in spec["versions"]:
                name = f"{spec['group']}/{version['name']}"
                found[name, spec["names"]["kind"]] = version["schema"]["openAPIV3Schema"]
    return found


def mistakes(document: dict[str, Any], schemas: dict[tuple[str, str], Schema]) -> list[str]:
    """What an API server with these definitions refuses, each with the path of its field."""
    identity = (document.get("apiVersion", ""), document.get("kind", ""))
    if identity not in schemas:
        return [f"no definition of {identity[1]} in {identity[0]}"]
    unknown = [f"metadata.{name}: unknown field" for name in document.get("metadata", {}) if name not in METADATA]
    return [*unknown, *_check(document, schemas[identity], "")]


def _check(value: Any, schema: Schema, path: str) -> Iterator[str]:
    where = path or "(document)"
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{where}: {value!r} is neither an integer nor a string"
            return
    elif "type" in schema and not _is(value, schema["type"]):
        yield f"{where}: {value!r} is not of type {schema['type']}"
        return
    yield from _check_scalar(value, schema, where)
    if isinstance(value, list):
        yield from _check_list(value, schema, where)
    elif isinstance(value, dict):
        yield from _check_object(value, schema, path)
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not _holds(rule["rule"], value):
            yield f"{where}: {rule.get('message', 'rule')}: {' '.join(rule['rule'].split())}"


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])


def _check_scalar(value: Any, schema: Schema, where: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{where}: {value!r} does not match {schema['pattern']}"
        yield from _check_size(len(value), schema, "Length", where)
    if isinstance(value, int) and not isinstance(value, bool):
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        if schema.get("format") == "int32":
            low, high = max(low, -(1 << 31)), min(high, (1 << 31) - 1)
        if not low <= value <= high:
            yield f"{where}: {value} is not between {low} and {high}"


def _check_size(size: int, schema: Schema, what: str, where: str) -> Iterator[str]:
    if not schema.get(f"min{what}", 0) <= size <= schema.get(f"max{what}", size):
        yield f"{where}: its size {size} is not allowed"


def _check_list(value: list[Any], schema: Schema, where: str) -> Iterator[str]:
    yield from _check_size(len(value), schema, "Items", where)
    for index, item in enumerate(value):
        yield from _check(item, schema.get("items", {}), f"{where}[{index}]")
    keys = schema.get("x-kubernetes-list-map-keys", ())
    named = [tuple(item.get(key) for key in keys) for item in value if isinstance(item, dict)] if keys else []
    if len(set(named)) != len(named):
        yield f"{where}: two items have the same {', '.join(keys)}"


def _check_object(value: dict[str, Any], schema: Schema, path: str) -> Iterator[str]:
    fields, others = schema.get("properties", {}), schema.get("additionalProperties", False)
    yield from _check_size(len(value), schema, "Properties", path or "(document)")
    prefix = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{prefix}{name}: missing"
    keeps = schema.get("x-kubernetes-preserve-unknown-fields", False)
    for name, item in value.items():
        if not path and name == "metadata":
            continue  # checked by `mistakes`: definitions do not describe it
        if name in fields:
            yield from _check(item, fields[name], prefix + name)
        elif isinstance(others, dict):
            yield from _check(item, others, prefix + name)
        elif others is not True and not keeps:
            yield f"{prefix}{name}: unknown field"


def _holds(rule: str, value: Any) -> bool:
    environment = celpy.Environment()
    program = environment.program(environment.compile(rule))
    return bool(program.evaluate({"self": json_to_cel(value)}))
