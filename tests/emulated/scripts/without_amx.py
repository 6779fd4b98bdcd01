"""Runs a command to which arch_prctl refuses AMX, as a container's seccomp profile can.

python without_amx.py COMMAND...
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_ARCH_PRCTL, _REQUEST = 158, 0x1023
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF's instructions
_NUMBER, _FIRST_ARGUMENT = 0, 16  # offsets in the data of a system call
_REFUSE, _ALLOW = 0x50000 | errno.EPERM, 0x7FFF0000
# Code, how many to skip if equal and if not, operand.
FILTER = (
    (_LOAD, 0, 0, _NUMBER),
    (_EQUAL, 0, 3, _ARCH_PRCTL),
    (_LOAD, 0, 0, _FIRST_ARGUMENT),
    (_EQUAL, 0, 1, _REQUEST),
    (_RETURN, 0, 0, _REFUSE),
    (_RETURN, 0, 0, _ALLOW),
)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


program = _Program(len(FILTER), b"".join(struct.pack("HBBI", *line) for line in FILTER))
prctl = ctypes.CDLL(None).prctl
assert prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) == 0
assert prctl(_SECCOMP, _FILTER, ctypes.byref(program)) == 0
os.execvp(sys.argv[1], sys.argv[1:])
