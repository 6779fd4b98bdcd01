"""The changes to the sources of Bochs without which Linux and oneDNN do not use AMX in it. Pure.

Seen with the sources of 2026-08-22. A change whose place is missing is an error: Bochs may have it by then.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cpu_train_stack.cli.errors import UsageError

TILE_DATA = "(1 << 18)"  # the state component of tiles


@dataclass(frozen=True)
class Change:
    """In `file`, insert `text` before, after, or instead of `anchor`, which occurs once after `start`."""

    file: str
    anchor: str
    text: str
    where: str = "after"
    start: str = ""


_READ = "bool BX_CPP_AttrRegparmN(2) BX_CPU_C::rdmsr"
_WRITE = "bool BX_CPP_AttrRegparmN(2) BX_CPU_C::wrmsr"
CHANGES = (
    # XFD (extended feature disable), without which Linux does not offer AMX: two registers, their bits in CPUID
    # leaf 0xd, and the exception #NM of an instruction that is disabled.
    Change(
        "cpu/proc_ctrl.cc", "void BX_CPU_C::handleAvxModeChange(void)", "Bit64u cts_xfd, cts_xfd_err;\n", "before"
    ),
    Change(
        "cpu/proc_ctrl.cc",
        "#if BX_SUPPORT_AMX\n  if (",
        f"(cts_xfd & {TILE_DATA}) != 0 || ",
        start="void BX_CPU_C::handleAvxModeChange(void)",
    ),
    Change(
        "cpu/proc_ctrl.cc",
        "BX_ASSERT(0);",
        f"if (cts_xfd & {TILE_DATA}) {{ cts_xfd_err |= {TILE_DATA}; exception(BX_NM_EXCEPTION, 0); }}\n",
        "before",
        start="BX_CPU_C::BxNoAMX",
    ),
    Change("cpu/msr.cc", _READ, "extern Bit64u cts_xfd, cts_xfd_err;\n", "before"),
    Change(
        "cpu/msr.cc",
        "Bit64u val64 = 0;",
        # With a MISC_ENABLE without fast strings (bit 0), Linux' memmove copies too much. Bits 11 and 12: the CPU
        # cannot record branches and events.
        """
  switch (index) {
    case 0x1a0: *msr = 0x1801; return true;
    case 0x1c4: *msr = cts_xfd; return true;
    case 0x1c5: *msr = cts_xfd_err; return true;
  }""",
        start=_READ,
    ),
    Change(
        "cpu/msr.cc",
        "Bit32u val32_hi = GET32H(val_64);",
        f"""
  if (index == 0x1a0) return true;
  if (index == 0x1c4 || index == 0x1c5) {{
    if (val_64 & ~Bit64u {TILE_DATA}) return false;
    (index == 0x1c4 ? cts_xfd : cts_xfd_err) = val_64;
    handleAvxModeChange();
    return true;
  }}""",
        start=_WRITE,
    ),
    Change(
        "cpu/cpuid.cc",
        "leaf->eax |= (1<<3);",
        " if (is_cpu_extension_supported(BX_ISA_AMX)) leaf->eax |= (1 << 4);",
        start="is_cpu_extension_supported(BX_ISA_XSAVEC)",
    ),
    Change(
        "cpu/cpuid.cc", "leaf->ecx = xsave_restore[subfunction].attr;", " if (subfunction == 18) leaf->ecx |= 4;"
    ),
    # The compacted size of all components leaves their alignment out: Linux then turns XSAVE off.
    Change(
        "cpu/cpuid.cc",
        "max_size += xsave_restore[n].len;",
        "max_size = ((xsave_restore[n].attr & 2) ? (max_size + 63) & ~63u : max_size) + xsave_restore[n].len;",
        "instead",
    ),
    # STTILECFG is decoded with W1 instead of W0: an illegal instruction in oneDNN's kernels.
    Change(
        "cpu/decoder/fetchdecode_opmap_avx.cc",
        "ATTR_VEX_W1 | ATTR_VL128 | ATTR_MOD_MEM | ATTR_IS64, BX_IA_STTILECFG",
        "ATTR_VEX_W0 | ATTR_VL128 | ATTR_MOD_MEM | ATTR_IS64, BX_IA_STTILECFG",
        "instead",
    ),
    # A stored tile configuration has rows and bytes per row exchanged.
    Change("cpu/xsave.cc", "amx->tilecfg[n].rows;", "amx->tilecfg[n].bytes_per_row; // 16 bits", "instead"),
    Change(
        "cpu/xsave.cc",
        "amx->tilecfg[n].bytes_per_row;",
        "amx->tilecfg[n].rows;",
        "instead",
        start="tilecfg.vmmubyte(48+n)",
    ),
    # The state of tiles is saved only while they are unused, and without half of their rows: a thread that is
    # interrupted between the instructions of a product loses its sums.
    *(
        Change("cpu/xsave.cc", "row < BX_TILE_REGISTERS", "row < BX_TILE_MAX_ROWS", "instead", start)
        for start in ("BX_CPU_C::xsave_tiledata_state(", "BX_CPU_C::xrstor_tiledata_state(")
    ),
    Change(
        "cpu/xsave.cc",
        "tile_use_tracker == 0",
        "tile_use_tracker != 0",
        "instead",
        start="BX_CPU_C::xsave_tiledata_state_xinuse",
    ),
)


def patched(sources: Mapping[str, str]) -> dict[str, str]:
    """The changed files. `sources`: at least the files of CHANGES, by path in Bochs' folder `bochs`."""
    found = dict(sources)
    for change in CHANGES:
        found[change.file] = _changed(found[change.file], change)
    return {file: text for file, text in found.items() if text != sources[file]}


def _changed(text: str, change: Change) -> str:
    begin = text.find(change.start)
    at = text.find(change.anchor, begin) if begin >= 0 else -1
    if at < 0:
        place = f"{change.anchor!r}" + (f" after {change.start!r}" if change.start else "")
        raise UsageError(f"bochs/{change.file} has no {place}: check out a commit of 2026-08 or adapt {__name__}")
    end = at + len(change.anchor)
    before, after = (at, at) if change.where == "before" else (end, end) if change.where == "after" else (at, end)
    return text[:before] + change.text + text[after:]
