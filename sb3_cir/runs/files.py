"""
Files: their names, how they are written whole, and how they are read without trusting them.

Arrays go into safetensors, everything else into JSON. Both lie uncompressed in a zip, which keeps a checksum of each. What is
read is held against the size of the file first, so that a small file cannot ask for much memory.
"""

import contextlib
import errno
import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from sb3_cir.words import first_line, short

Arrays = Mapping[str, np.ndarray]
File = str | Path | io.BufferedIOBase  # a place, or what is open there

CHECKPOINT = re.compile(r"step_(\d{1,18})\.zip")
ROWS_FOLDER = "transitions"
ROWS = re.compile(r"[a-z_]+_\d{1,18}_[0-9a-f]{12}\.safetensors")
PART = re.compile(r"\.(step_\d+\.zip|[a-z_]+_\d+_[0-9a-f]{12}\.safetensors)(\.\d+)?\.part")
NOTE = "sb3_cir"
JSON_BYTES = 256 * 2**20  # Pickles of images can be long.
JSON_VALUES = 500_000  # More than any run has to say; parsed, each takes up to a hundred bytes.
HEADER_BYTES = 2**24  # Names and shapes of some hundred thousand arrays.
FULL = {errno.ENOSPC, errno.EDQUOT}


class DamagedError(ValueError):
    """A file that is not as it was written."""


def checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """
    :param folder: A folder of checkpoints
    :return: Step and file of each, the newest first, looked at by name alone
    """
    found = [(CHECKPOINT.fullmatch(path.name), path) for path in folder.glob("step_*.zip")]
    return sorted(((int(match[1]), path) for match, path in found if match), reverse=True)


def is_checkpoint(path: Path) -> bool:
    """
    :param path: A file
    :return: Whether it is a checkpoint by its name and place. Whether it is whole, only reading it tells.
    """
    return CHECKPOINT.fullmatch(path.name) is not None and (path.parent / ROWS_FOLDER).is_dir()


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """
    Write a file that is either there and whole or not there. Once its folder is flushed, this holds after the power fails too.

    :param path: The file
    :param content: What is to be in it
    """
    with _part_of(path) as part, open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A file beside another, which takes its place once it is written, or is gone where it cannot be."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")  # its own, where two processes write one file
    try:
        yield part
        part.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def flush(folder: Path) -> None:
    """:param folder: A folder whose names are to be on the disk"""
    if os.name == "nt":
        return  # Windows opens no folder
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_regular(path: Path, at_most: int = -1) -> bytes:
    """
    :param path: A file
    :param at_most: How many bytes to read; all by default
    :return: What is in it
    :raises DamagedError: If it is a folder, a pipe or a device, which may never end.
    :raises OSError: If it cannot be read.
    """
    # Opening a pipe would wait for whoever writes to it. Windows has none of the first two, and it alone has the last.
    flags = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    handle = os.open(path, os.O_RDONLY | flags)
    kind = os.fstat(handle).st_mode
    if not stat.S_ISREG(kind):
        os.close(handle)  # open() refuses a folder and leaves its handle open
        raise DamagedError(f"{path}: this is {'a folder' if stat.S_ISDIR(kind) else 'no regular file'}.")
    with open(handle, "rb") as file:
        return file.read(at_most)


def pack(arrays: Arrays, note: str | None = None) -> bytes:
    """
    :param arrays: Arrays by name
    :param note: JSON that is to lie beside them
    :return: A file of them, as :func:`unpack` takes it
    """
    return safetensors.numpy.save(_contiguous(arrays), metadata=None if note is None else {NOTE: note})


def _contiguous(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: np.require(array, requirements="C") for name, array in arrays.items()}


def write_arrays(path: Path, arrays: Arrays, note: str) -> None:
    """
    Write a file of arrays that may be larger than the memory that is left.

    :param path: The file
    :param arrays: Arrays by name
    :param note: JSON that is to lie beside them
    """
    with _part_of(path) as part:
        safetensors.numpy.save_file(_contiguous(arrays), part, metadata={NOTE: note})


def find(path: str | Path, *suffixes: str) -> Path:
    """
    :param path: A file to be read, as a user writes it
    :param suffixes: What may be left out at its end
    :return: The file of this very name, else the first that there is with a suffix: as with SB3, whatever dots are in the name
    """
    places = [Path(path), *(Path(f"{path}{suffix}") for suffix in suffixes)]
    return next((place for place in places if place.is_file()), places[0])


def place_for_arrays(path: str | Path) -> Path:
    """
    :param path: Where arrays are to be written
    :return: The same with ``.safetensors`` where it has no suffix. Its folder is made.
    """
    whole = Path(path) if Path(path).suffix else Path(f"{path}.safetensors")
    whole.parent.mkdir(parents=True, exist_ok=True)
    return whole


def read_arrays(path: File, what: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """
    :param path: A file of arrays with a note
    :param what: What it is, for the error
    :return: The note, and the arrays by name
    :raises DamagedError: If it is anything else.
    """
    if isinstance(path, (str, Path)):
        note, arrays = _map_arrays(Path(path), what)
    else:
        content = path.read()
        arrays = unpack(content, what)  # which has looked at the length of the header
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        note = header.get("__metadata__", {}).get(NOTE)
    if note is None:
        raise DamagedError(f"{what}: it has arrays, but does not say of what.")
    return note.encode(), arrays


def _map_arrays(path: Path, what: str) -> tuple[str | None, dict[str, np.ndarray]]:
    """The same without having the file in memory twice: it may be large."""
    _check_header(read_regular(path, 8), what)
    try:
        with safetensors.safe_open(path, "np") as opened:
            return (opened.metadata() or {}).get(NOTE), {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except Exception as error:  # It may fail in Rust, in NumPy, or for a kind of number that NumPy does not have.
        raise DamagedError(f"{what}: these are no arrays in the safetensors format ({first_line(error)}).") from error


def _check_header(content: bytes, what: str) -> None:
    if int.from_bytes(content[:8], "little") > HEADER_BYTES:
        raise DamagedError(
            f"{what}: these are no arrays in the safetensors format (a header of more than {HEADER_BYTES} bytes)."
        )


def is_pickle(path: File) -> bool:
    """
    :param path: A file
    :return: Whether it begins as pickles do. So does the length of some headers of arrays, which is small where it is one.
    """
    if isinstance(path, (str, Path)):
        first = read_regular(Path(path), 8)
    else:
        first = path.read(8)
        path.seek(-len(first), os.SEEK_CUR)
    return first[:1] == b"\x80" and (len(first) < 8 or int.from_bytes(first, "little") > HEADER_BYTES)


def is_trusted_pickle(path: File, trusted: bool, what: str) -> bool:
    """
    :param path: A file
    :param trusted: Whether a pickle may be read
    :param what: What the file is, for the error
    :return: Whether it is a pickle
    :raises ValueError: If it is one that may not be read.
    """
    pickled = is_pickle(path)
    if pickled and not trusted:
        raise ValueError(f"{what} is a pickle, which can run any code: pass trusted=True if you trust whoever made it.")
    return pickled


def unpack(content: bytes, what: str) -> dict[str, np.ndarray]:
    """
    :param content: A file in the safetensors format
    :param what: What it is, for the error
    :return: Its arrays by name. Together they are no larger than the file.
    :raises DamagedError: If it is anything else.
    """
    _check_header(content, what)
    try:
        arrays = safetensors.numpy.load(content)
    except Exception as error:  # It may fail in Rust, in NumPy, or for a kind of number that NumPy does not have.
        raise DamagedError(f"{what}: these are no arrays in the safetensors format ({first_line(error)}).") from error
    # NumPy aligns what it makes itself; what is read from bytes may lie anywhere, and cannot be written to.
    return {name: np.require(array, requirements=["A", "W", "C"]) for name, array in arrays.items()}


def checksum(arrays: Arrays, note: str = "") -> int:
    """
    :param arrays: Arrays by name
    :param note: JSON that lies beside them
    :return: CRC-32 of the note, and of their numbers in the order of their names
    """
    value = zlib.crc32(note.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        value = zlib.crc32(array.reshape(-1).view(np.uint8).data, value)
    return value


def pack_archive(members: Mapping[str, Any], file: Any = None) -> Any:
    """
    :param members: Contents by name, bytes or text
    :param file: An open file that is to get it; in memory by default
    :return: A zip that has them, uncompressed
    """
    archive = io.BytesIO() if file is None else file
    with zipfile.ZipFile(archive, "w") as opened:
        for name, content in members.items():
            opened.writestr(name, content)
    return archive


def unpack_archive(content: bytes, what: str) -> dict[str, bytes]:
    """
    :param content: A zip
    :param what: What it is, for the error
    :return: Its members by name
    :raises DamagedError: If it is none, if a checksum differs, or if it is much larger than it looks.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            names = [member.filename for member in members]
            if len(set(names)) < len(names):
                raise ValueError("a name stands in it twice")
            if sum(member.file_size for member in members) > 8 * len(content) + 2**20:
                raise ValueError("it says that it is far larger than it is")
            if any(member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for member in members):
                raise ValueError("it is compressed in a way that hides its size")
            return {member.filename: _read_member(archive, member) for member in members}
    except Exception as error:  # A damaged zip can fail in any way, an encrypted one asks for a password.
        raise DamagedError(f"{what}: this is no archive that can be read ({first_line(error)}).") from error


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """What it says that it has, and no more: ``archive.read()`` unpacks all that there is and looks at the size afterwards."""
    with archive.open(member) as file:
        return file.read(max(member.file_size, 1))


def require(members: Mapping[str, bytes], names: Iterable[str], what: str) -> None:
    """
    :param members: An archive's
    :param names: What must be among them
    :param what: What the archive is, for the error
    :raises DamagedError: If something is missing.
    """
    missing = [name for name in names if name not in members]
    if missing:
        raise DamagedError(f"{what}: {', '.join(missing)} is missing in it.")


def read_json(content: bytes, what: str, trusted: bool = False) -> dict[str, Any]:
    """
    :param content: JSON
    :param what: What it is, for the error
    :param trusted: Whether it may be of any length
    :return: The object that it holds
    :raises DamagedError: If it is no JSON, no object, too long or too deep.
    """
    values = sum(content.count(mark) for mark in (b",", b"[", b"{"))
    if not trusted and (len(content) > JSON_BYTES or values > JSON_VALUES):
        raise DamagedError(f"{what}: {len(content)} bytes of JSON with {values} values, {JSON_VALUES} are allowed.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{what}: this is no JSON ({first_line(error)}).") from error
    if not isinstance(value, dict):
        raise DamagedError(f"{what}: an object was expected, this is {short(value)}.")
    return value
