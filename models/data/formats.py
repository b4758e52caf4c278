"""From the bytes of a file to arrays or to the files in it. Nothing that is read is executed."""

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator

import numpy as np

from audit.errors import InputError, require

Arrays = dict[str, np.ndarray]
Read = Callable[[bytes], Arrays]

LARGEST_MEMBER = 1 << 28  # bytes, unpacked; the largest that is read of any archive has 47 MB


def read_csv(content: bytes) -> Arrays:
    """A table with a header, a column an array."""
    from pyarrow import csv

    table = csv.read_csv(io.BytesIO(content))
    return {name: table[name].to_numpy() for name in table.column_names}


def read_parquet(content: bytes) -> Arrays:
    """A table, a column an array; brotli, too, is said inside the file."""
    from pyarrow import parquet

    table = parquet.ParquetFile(io.BytesIO(content)).read()
    return {name: table[name].to_numpy() for name in table.column_names}


def read_npz(content: bytes) -> Arrays:
    """NumPy's own archive; a pickle inside is an error."""
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def tar_members(archive: bytes, names: Collection[str]) -> dict[str, bytes]:
    """The files of a tar archive, compressed or not, in one pass: a compressed one has no way back. Raises
    InputError where one is missing or larger than LARGEST_MEMBER."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            handle = tar.extractfile(member) if member.name in names else None
            if handle is not None:
                fits = member.size <= LARGEST_MEMBER
                require(fits, f"{member.name} has {member.size} bytes, more than {LARGEST_MEMBER}")
                found[member.name] = handle.read()
    missing = [name for name in names if name not in found]
    require(not missing, f"the archive holds no {', '.join(missing[:1])}")
    return found


def zip_member(archive: bytes, name: str) -> bytes:
    """A file of a zip archive, such as a wheel."""
    with zipfile.ZipFile(io.BytesIO(archive)) as members:
        return members.read(name)


def deb_members(archive: bytes, names: Collection[str]) -> dict[str, bytes]:
    """The files of a Debian package, by the paths to which it would install them, without the first /.

    A package is an ar archive (deb(5)) of three members; the files lie in the one named data.tar.*. Raises
    InputError where the bytes are no such package, and as `tar_members`.
    """
    data = {name: content for name, content in _ar_members(archive) if name.startswith("data.tar")}
    require(len(data) == 1, "it is no Debian package: it holds no data.tar")
    ((name, content),) = data.items()
    message = f"its {name} is not read here: unpack it with dpkg-deb -x and name the folder of its files"
    require(name.endswith((".tar", ".gz", ".xz", ".bz2")), message)
    members = tar_members(content, [f"./{path}" for path in names])
    return {path: members[f"./{path}"] for path in names}


def _ar_members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of an ar archive: a header has 60 bytes, contents begin at even ones."""
    require(archive.startswith(b"!<arch>\n"), "it is no Debian package: it does not begin with !<arch>")
    start = 8
    while start < len(archive):
        header, size = archive[start : start + 60], archive[start + 48 : start + 58].strip()
        content = archive[start + 60 : start + 60 + int(size)] if size.isdigit() else b""
        whole = header.endswith(b"`\n") and size.isdigit() and int(size) == len(content)
        require(whole, f"the package is torn at byte {start}")
        yield header[:16].decode("ascii").rstrip(" /"), content
        start += 60 + len(content) + len(content) % 2


def read_idx(content: bytes) -> np.ndarray:
    """The array of bytes in an IDX file (LeCun, 1998): 0, 0, 8, the number of axes, their lengths as
    32-bit big-endian numbers, and the values in C order. Raises InputError for any other file."""
    whole = len(content) >= 4 and content[:3] == b"\0\0\x08" and len(content) >= 4 + 4 * content[3]
    require(whole, f"it begins with {content[:4].hex(' ') or 'nothing'}, not as an idx file of bytes")
    start = 4 + 4 * content[3]
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    size = int(np.prod(shape, dtype=object))
    held = len(content) - start
    require(held == size, f"it holds {held} values, not the {size} of its shape {shape}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def gunzip(content: bytes) -> bytes:
    """The content of a gzip file; raises InputError if it is torn or over LARGEST_MEMBER bytes."""
    try:
        with gzip.open(io.BytesIO(content)) as handle:
            unpacked = handle.read(LARGEST_MEMBER + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"it is no whole gzip file ({error})") from None
    require(len(unpacked) <= LARGEST_MEMBER, f"it unpacks to more than {LARGEST_MEMBER} bytes")
    return unpacked
