"""Protobuf's wire format, as far as reading two public schemas needs it; no generated code.

A message is fields one after the other, each a key (number << 3 | wire type) and a value: a varint,
8 bytes, bytes of a length, or 4 bytes (protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from gnnplace.errors import InputError

MOST = 500_000  # fields of a message, such as the nodes of a graph
VARINT = 0
FIXED64 = 1
LENGTH = 2
FIXED32 = 5


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place behind it.

    Raises:
        InputError: the data end within it.
    """
    if at < len(data) and data[at] < 0x80:  # nearly all are of one byte
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if not byte & 0x80:
            return value, at
    raise InputError("no protobuf message, or cut off")


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field of a message; fixed ones as their bytes.

    Raises:
        InputError: it is no message, or cut off.
    """
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = varint(data, at)
            yield key >> 3, value
            continue
        if kind == LENGTH:
            size, at = varint(data, at)
        else:
            size = {FIXED64: 8, FIXED32: 4}.get(kind, len(data) + 1)
        if at + size > len(data):
            raise InputError("no protobuf message, or cut off")
        yield key >> 3, data[at : at + size]
        at += size


class WireMessage:
    """Fields of a message by their numbers.

    Args:
        data: the message as bytes.

    Raises:
        InputError: it is no message, cut off, or has more than `MOST` fields.
    """

    def __init__(self, data: bytes) -> None:
        self._values: dict[int, list[int | bytes]] = {}
        for count, (name, value) in enumerate(fields(data)):
            if count == MOST:
                raise InputError(
                    f"a message of more than {MOST:,} fields; is it the right file?"
                )
            self._values.setdefault(name, []).append(value)

    def messages(self, name: int) -> list[WireMessage]:
        """Return a repeated field of messages."""
        return [
            WireMessage(one)
            for one in self._values.get(name, ())
            if isinstance(one, bytes)
        ]

    def texts(self, name: int) -> list[str]:
        """Return a repeated field of text."""
        values = self._values.get(name, ())
        return [
            one.decode("utf-8", "replace") for one in values if isinstance(one, bytes)
        ]

    def text(self, name: int) -> str:
        """Return a field of text, empty where it is missing."""
        return next(iter(self.texts(name)[-1:]), "")

    def numbers(self, name: int) -> list[int]:
        """Return a repeated field of whole numbers, packed or not."""
        integers: list[int] = []
        for one in self._values.get(name, ()):
            at = 0
            while isinstance(one, bytes) and at < len(one):
                value, at = varint(one, at)
                integers.append(value)
            integers += [one] if isinstance(one, int) else []
        return integers

    def num_floats(self, name: int) -> int:
        """Return how many 4-byte numbers a field holds, packed or not."""
        return sum(
            len(one) // 4
            for one in self._values.get(name, ())
            if isinstance(one, bytes)
        )

    def data(self, name: int) -> bytes:
        """Return a field of bytes, empty where it is missing."""
        values = [one for one in self._values.get(name, ()) if isinstance(one, bytes)]
        if values:
            return values[-1]
        return b""

    def number(self, name: int, default: int = 0) -> int:
        """Return a field of a whole number."""
        return next(iter(self.numbers(name)[-1:]), default)

    def double(self, name: int) -> float | None:
        """Return a field of 8 bytes as a float; None where it is missing."""
        values = [one for one in self._values.get(name, ()) if isinstance(one, bytes)]
        if values and len(values[-1]) == 8:
            return struct.unpack("<d", values[-1])[0]
        return None
