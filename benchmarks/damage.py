"""How saved files are altered: in their bytes, in the members of a zip, in the values that these hold."""

import functools
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

Change = Callable[[Path], None]  # alters a copy of a source's folder in place


@functools.cache
def zeros(name: str) -> bytes:
    """
    :param name: Of a member
    :return: A small zip that has 1.25 GiB of zeros under this name
    """
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as opened, opened.open(name, "w") as member:
        for _ in range(80):
            member.write(bytes(2**24))
    return archive.getvalue()


def add_to_zip(file: Any, members: dict[str, bytes]) -> None:
    """
    :param file: A zip, as a path or open
    :param members: What to add, uncompressed
    """
    with zipfile.ZipFile(file, "a") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def read_zip(path: Any) -> dict[str, bytes]:
    """
    :param path: A zip
    :return: Its members by name
    """
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """
    :param path: Where to
    :param members: By name
    :param compression: One of zipfile's
    """
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def in_zip(file: str, change: Callable[[dict[str, bytes]], Any]) -> Change:
    """
    :param file: Name of the zip
    :param change: Alters its members
    :return: The same, as a change of a folder
    """

    def changed(folder: Path) -> None:
        members = read_zip(folder / file)
        change(members)
        write_zip(folder / file, members)

    return changed


def in_json(file: str, member: str, change: Callable[[Any], Any]) -> Change:
    """
    :param file: Name of the zip
    :param member: Of it, JSON
    :param change: Alters what it holds, or returns what is to stand in its place
    :return: The same, as a change of a folder
    """

    def changed(members: dict[str, bytes]) -> None:
        value = json.loads(members[member])
        value = change(value) or value
        members[member] = json.dumps(value).encode()

    return in_zip(file, changed)


def in_arrays(file: str, change: Callable[[dict[str, np.ndarray]], Any]) -> Change:
    """
    :param file: Name of the zip
    :param change: Alters its arrays
    :return: The same, as a change of a folder
    """

    def changed(members: dict[str, bytes]) -> None:
        arrays = {name: array.copy() for name, array in safetensors.numpy.load(members["arrays.safetensors"]).items()}
        change(arrays)
        members["arrays.safetensors"] = safetensors.numpy.save({n: np.ascontiguousarray(a) for n, a in arrays.items()})

    return in_zip(file, changed)


def in_bytes(pattern: str, change: Callable[[bytearray], Any]) -> Change:
    """
    :param pattern: Which file; of several the last
    :param change: Alters its bytes, or returns what is to stand in their place
    :return: The same, as a change of a folder
    """

    def changed(folder: Path) -> None:
        path = sorted(folder.glob(pattern))[-1]
        content = bytearray(path.read_bytes())
        path.write_bytes(change(content) or content)

    return changed


def put(*path: Any, value: Any) -> Callable[[Any], None]:
    """
    :param path: Keys and indices
    :param value: What is to stand there
    :return: A change of JSON
    """

    def change(json_value: Any) -> None:
        for key in path[:-1]:
            json_value = json_value[key]
        json_value[path[-1]] = value

    return change


def drop(*path: Any) -> Callable[[Any], None]:
    """
    :param path: Keys
    :return: A change of JSON that removes what stands there
    """

    def change(json_value: Any) -> None:
        for key in path[:-1]:
            json_value = json_value[key]
        del json_value[path[-1]]

    return change
