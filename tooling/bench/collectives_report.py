"""The report of `./inv bench collectives`: one document for all places, a table, and the data of a plot. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cpu_train_stack.bench.cases import readable
from tooling.basis.console import plain_table
from tooling.bench.output import Document

SHORT = {"float32": "fp32", "bfloat16": "bf16"}
# torch's own process group on CPUs, with which other backends are compared.
BASELINE = "gloo"
# entrypoints/cpu_train_stack/bench/report.py, inside the image, explains what bounds each collective's bandwidth.
_KEY = ("where", "collective", "dtype", "bytes")

Row = Mapping[str, Any]


def merge(documents: Sequence[Document], facts: Mapping[str, Any]) -> dict[str, Any]:
    """One document with the rows and ceilings of all documents. The versions come from the first."""
    rows = [row for document in documents for row in document["rows"]]
    return {
        **facts,
        **{key: documents[0][key] for key in ("pin", "torch", "cpu")},
        "environment": {document["rows"][0]["where"]: document["environment"] for document in documents},
        "rows": rows,
        "ceilings": [ceiling for document in documents for ceiling in document["ceilings"]],
        "speedups": speedups(rows),
    }


def speedups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The speed-up of each backend over BASELINE, for each case with both."""
    baseline = {_key(row): row["latency_us"] for row in rows if row["backend"] == BASELINE}
    return [
        {
            **{key: row[key] for key in _KEY},
            "backend": row["backend"],
            "speedup": round(baseline[_key(row)] / row["latency_us"], 2),
        }
        for row in rows
        if row["backend"] != BASELINE and _key(row) in baseline
    ]


def places(document: Document) -> list[str]:
    """The values of `where`, in the order of the rows."""
    return _distinct(row["where"] for row in document["rows"])


def title(document: Document, where: str) -> str:
    """`two containers, 2 ranks`."""
    ranks = next(row["ranks"] for row in document["rows"] if row["where"] == where)
    return f"{where.replace('-', ' ')}, {ranks} ranks"


def table(document: Document) -> RenderableType:
    """A table for each place, followed by its ceilings."""
    parts: list[RenderableType] = []
    for where in places(document):
        ceilings = [ceiling for ceiling in document["ceilings"] if ceiling["where"] == where]
        limits = ", ".join(f"{_ceiling(ceiling)} {ceiling['gbytes_per_s']:.1f}" for ceiling in ceilings)
        parts += [_table_of(document, where), Text(f"ceilings, GB/s: {limits}"), Text()]
    return Group(*parts)


def _table_of(document: Document, where: str) -> Table:
    rows = [row for row in document["rows"] if row["where"] == where]
    backends = _distinct(row["backend"] for row in rows)
    ratios = {(_key(entry), entry["backend"]): entry["speedup"] for entry in document["speedups"]}
    compared = [backend for backend in backends if backend != BASELINE and BASELINE in backends]
    # Without the bandwidth of the baseline if there are other backends, to fit into 80 characters.
    with_speed = compared or backends
    left = ("collective", "type")
    names = [*left, "size", *(f"{backend} us" for backend in backends), *("speed-up" for _ in compared)]
    for backend in with_speed:
        names += [f"{backend} GB/s", "of ceiling"]
    result = plain_table(names, left, title(document, where))
    for key in _distinct(_key(row) for row in rows):
        of_backend = {row["backend"]: row for row in rows if _key(row) == key}
        some = next(iter(of_backend.values()))
        cells = [some["collective"], SHORT.get(some["dtype"], some["dtype"]), readable(some["bytes"])]
        cells += [f"{of_backend[name]['latency_us']:,.1f}" if name in of_backend else "" for name in backends]
        cells += [f"{ratios[key, name]:.1f}x" if (key, name) in ratios else "" for name in compared]
        for name in with_speed:
            cells += _speed(of_backend.get(name))
        result.add_row(*cells)
    return result


def curves(document: Document, where: str, collective: str) -> dict[tuple[str, str], list[Row]]:
    """The rows of a collective at one place, by backend and type, in the order of the size."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(document["rows"], key=lambda row: int(row["bytes"])):
        if (row["where"], row["collective"]) == (where, collective):
            found.setdefault((row["backend"], row["dtype"]), []).append(row)
    return found


def _ceiling(ceiling: Mapping[str, Any]) -> str:
    size = ceiling["bytes"]
    return str(ceiling["what"]) if size is None else f"{ceiling['what']} of {readable(size)}"


def _speed(row: Row | None) -> list[str]:
    if row is None:
        return ["", ""]
    share = row["ceiling_share"]
    return [f"{row['algbw_gbytes_per_s']:.3g}", "" if share is None else f"{share:.0%}"]


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _KEY)


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
