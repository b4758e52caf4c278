"""Readers of file formats: from the bytes of a file to arrays, or to the files in it.

Nothing that is read is executed.
"""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

import numpy as np

from audit.errors import InputError, require

if TYPE_CHECKING:
    import pyarrow

Arrays = dict[str, np.ndarray]
Reader = Callable[[bytes], Arrays]

LARGEST_MEMBER = 1 << 28  # bytes, unpacked; the largest that is read of any archive has 47 MB


def read_csv(content: bytes) -> Arrays:
    """Reads a CSV table with a header, as an array for each column, by name."""
    from pyarrow import csv

    return _convert_table(csv.read_csv(io.BytesIO(content)))


def read_parquet(content: bytes) -> Arrays:
    """Reads a Parquet table, as an array for each column, by name."""
    from pyarrow import parquet

    return _convert_table(parquet.ParquetFile(io.BytesIO(content)).read())


def _convert_table(table: "pyarrow.Table") -> Arrays:
    """Converts the columns of a table to arrays."""
    return {name: table[name].to_numpy() for name in table.column_names}


def read_npz(content: bytes) -> Arrays:
    """Reads the arrays of an .npz archive, by name; raises ValueError where it holds a pickled object."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def require_arrays(raw: Arrays, names: Collection[str]) -> None:
    """Raises InputError unless arrays of all names are there."""
    missing = [name for name in names if name not in raw]
    require(not missing, f"array {', '.join(missing)} is missing; it has {list(raw)}"[:300])


def read_tar_members(archive: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Returns the contents of some files of a tar archive, compressed or not, by their names.

    Reads the archive in one pass, because going back in a compressed archive means decompressing it again.

    Args:
      archive: the archive's bytes.
      names: the files' paths within the archive.

    Raises:
      InputError: a file is missing, or has more than LARGEST_MEMBER bytes and could fill the memory.
    """
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            if member.name not in names:
                continue
            handle = tar.extractfile(member)
            if handle is None:  # a folder or a device
                continue
            fits = member.size <= LARGEST_MEMBER
            require(fits, f"{member.name} has {member.size} bytes, more than {LARGEST_MEMBER}")
            contents[member.name] = handle.read()

    missing = [name for name in names if name not in contents]
    first_missing = "".join(missing[:1])  # empty if none is missing
    require(not missing, f"the archive holds no {first_missing}")
    return contents


def read_zip_member(archive: bytes, name: str) -> bytes:
    """Returns the content of a file of a zip archive, such as a wheel."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        return members.read(name)


def read_deb_members(archive: bytes, names: Collection[str]) -> dict[str, bytes]:
    """Returns the contents of some files of a Debian package, by their paths.

    A package is an ar archive with a member data.tar, data.tar.gz or similar, which holds all files (deb(5)).

    Args:
      archive: the package's bytes.
      names: the paths to which it would install the files, without the first /.

    Raises:
      InputError: the bytes are no such package, or a file is missing or larger than LARGEST_MEMBER.
    """
    tars = {}
    for name, content in _read_ar_members(archive):
        if name.startswith("data.tar"):
            tars[name] = content
    require(len(tars) == 1, "it is no Debian package: it holds no data.tar")
    name, content = next(iter(tars.items()))

    # Some packages compress it as .zst, which not every Python's tarfile reads.
    message = (
        f"its {name} is not read here: unpack it with dpkg-deb -x and name the folder of its files"
    )
    require(name.endswith((".tar", ".gz", ".xz", ".bz2")), message)
    # Paths in it begin with ./
    members = read_tar_members(content, [f"./{path}" for path in names])
    return {path: members[f"./{path}"] for path in names}


def _read_ar_members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields (name, content) of the files of an ar archive (ar(5)); raises InputError if it is torn.

    Each file has a header of 60 bytes and then its content. Bytes 0 to 15 of the header are the file's name,
    bytes 48 to 57 the content's size in decimal digits; the last two are a backquote and a line break.
    """
    require(
        archive.startswith(b"!<arch>\n"), "it is no Debian package: it does not begin with !<arch>"
    )
    start = 8  # after !<arch> and a line break
    while start < len(archive):
        torn = f"the package is torn at byte {start}"
        header = archive[start : start + 60]
        size_field = header[48:58].strip()
        require(header.endswith(b"`\n") and size_field.isdigit(), torn)

        size = int(size_field)
        content = archive[start + 60 : start + 60 + size]
        require(len(content) == size, torn)
        # A name has 16 bytes, filled up with spaces; some writers of archives end it with a slash.
        yield header[:16].decode("ascii").rstrip(" /"), content
        start += 60 + size + size % 2  # the next header begins at an even byte


def read_idx(content: bytes) -> np.ndarray:
    """Reads the array of bytes in an IDX file (LeCun, 1998).

    The file holds the bytes 0, 0, 8 (the code of uint8) and the number of axes, then the axes' lengths as
    32-bit big-endian numbers, then the values in C order.

    Raises:
      InputError: the content is not in that form.
    """
    is_idx = len(content) >= 4 and content[:3] == b"\0\0\x08"
    has_shape = is_idx and len(content) >= 4 + 4 * content[3]  # byte 3 is the number of axes
    beginning = content[:4].hex(" ") or "nothing"
    require(has_shape, f"it begins with {beginning}, not as an idx file of bytes")

    start = 4 + 4 * content[3]  # of the values
    shape = tuple(np.frombuffer(content[4:start], ">u4").tolist())
    expected_size = int(np.prod(shape, dtype=object))  # Python's integers, which cannot overflow
    size = len(content) - start
    require(
        size == expected_size,
        f"it holds {size} values, not the {expected_size} of its shape {shape}",
    )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def gunzip(content: bytes) -> bytes:
    """Unpacks a gzip file; raises InputError if it is torn or over LARGEST_MEMBER bytes."""
    try:
        with gzip.open(io.BytesIO(content)) as handle:
            unpacked = handle.read(LARGEST_MEMBER + 1)  # a byte too many shows that it is larger
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"it is no whole gzip file ({error})") from None
    require(len(unpacked) <= LARGEST_MEMBER, f"it unpacks to more than {LARGEST_MEMBER} bytes")
    return unpacked
