"""The bytes of files, sound and damaged."""

import io
import struct
import zipfile

import numpy as np


def npz(**arrays):
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def claiming(shape, dtype="<f8", version=1):
    """A .npy whose header claims a shape, before 16 bytes of data."""
    header = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode() + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + size + header + bytes(16)


def archive(content=None, name="in.npy", method=zipfile.ZIP_DEFLATED):
    """An .npz of a member in, whatever that holds, and a member out."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as members:
        members.writestr(name, npy(np.arange(50.0)) if content is None else content)
        members.writestr("out.npy", npy(np.arange(60.0)))
    return file.getvalue()


def flipped(content, start, stop):
    """The content with every byte of a range changed."""
    changed = bytes(byte ^ 0x5A for byte in content[start:stop])
    return content[:start] + changed + content[stop:]
