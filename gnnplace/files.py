"""Reading and writing files: strict JSON, errors that name the key path, atomic writes."""

from __future__ import annotations

import csv
import ctypes
import gc
import json
import os
import re
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeVar, get_args

import numpy as np
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from gnnplace.errors import FormatError, InputError, join_faults

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

ModelT = TypeVar("ModelT", bound=BaseModel)
GivenT = TypeVar("GivenT")
NUMBER = r"((?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
SIZE = re.compile(NUMBER + r"\s*([kmgtKMGT]i?)?([bB])?")
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
UNITS |= {"ki": 2.0**10, "mi": 2.0**20, "gi": 2.0**30, "ti": 2.0**40}
DESCRIPTOR = re.compile(r"/dev/(stdin|stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
PLAIN_MESSAGES = {
    "extra_forbidden": "unknown key (keys of your own must begin with 'x-')",
    "missing": "required key is missing",
    "finite_number": "must be a finite number",
    "greater_than": "must be more than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "dict_type": "must be keys and values",
    "model_type": "must be keys and values",
    "literal_error": "must be {expected}",
    "too_short": "must have {min_length} entries or more, and has {actual_length}",
    "too_long": "must have {max_length} entries at most, and has {actual_length}",
}
"""What is said of a fault by pydantic's word for it; names in braces are of its context."""


@contextmanager
def within(source: str | Path) -> Iterator[None]:
    """Raise errors of what is read inside as errors of the file's format that name the file.

    Raises:
        FormatError: what is read inside raises an InputError.
    """
    try:
        yield
    except InputError as error:
        raise FormatError(f"{source}: {error}") from None


def cache_folder() -> Path:
    """Return the folder of op and link times.

    `$GNNPLACE_CACHE`, else `gnnplace` in `$XDG_CACHE_HOME` or `~/.cache`.
    """
    folder = os.environ.get("GNNPLACE_CACHE")
    if folder:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gnnplace"


def read_size(given: GivenT | str) -> GivenT | float:
    """Return the bytes that a text such as "16GB" or "512MiB" stands for.

    Anything but a text is returned as it is.

    Raises:
        ValueError: a text that is none.
    """
    if not isinstance(given, str):
        return given
    match = SIZE.fullmatch(given.strip())
    if match is None:
        raise ValueError(
            f"{given!r} is no size; write bytes, as 16e9, '16GB' or '512MiB'"
        )
    return float(match[1]) * UNITS[(match[2] or "").lower()]


def read_rate(given: object) -> object:
    """Return bytes per second of a text such as "12GB/s", "400Gb/s" or "100Gbit/s".

    Numbers, and what is no text, stay as they are. A small b is a bit, a large B a byte.

    Raises:
        ValueError: The text is no bandwidth.
    """
    if not isinstance(given, str):
        return given
    text = re.sub(r"ps$", "/s", given.strip())
    amount, slash, _ = text.partition("/s")
    if slash and text.endswith("/s"):
        size = SIZE.fullmatch(amount.removesuffix("it"))
    else:
        size = None
    if size is None or (amount.endswith("it") and size[3] != "b"):
        raise ValueError(
            f"{given!r} is no bandwidth; write bytes per second, as 12e9 or '12GB/s', or bits, as "
            "'400Gb/s' or '100Gbit/s'"
        )
    bits_per_byte = 8.0 if size[3] == "b" else 1.0
    return float(size[1]) * UNITS[(size[2] or "").lower()] / bits_per_byte


DURATION = re.compile(NUMBER + r"\s*(s|ms|us|µs|ns)")
SECONDS_OF = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


def read_seconds(given: GivenT | str) -> GivenT | float:
    """Return seconds of a text such as "5us" or "0.2 ms"; what is no text stays as it is.

    Raises:
        ValueError: The text is no duration.
    """
    if not isinstance(given, str):
        return given
    duration = DURATION.fullmatch(given.strip())
    if duration is None:
        raise ValueError(
            f"{given!r} is no time; write seconds, as 5e-6, '5us' or '0.2ms'"
        )
    return float(duration[1]) * SECONDS_OF[duration[2]]


YamlLoader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
YAML, NESTED = 1_000_000, 200
"""Characters of YAML, of which a second reads some 300,000, and how deep its parts may be."""
# The most bytes, seconds or bytes a second in files, so that sums and quotients are finite.
MOST = 1e30
Bytes = Annotated[float, BeforeValidator(read_size), Field(ge=0, le=MOST)]
"""Bytes in files: a number, or a text such as "16GB"."""
Rate = Annotated[float, BeforeValidator(read_rate), Field(ge=1 / MOST, le=MOST)]
"""Bytes per second in files: a number, or a text such as "12GB/s"."""
Seconds = Annotated[float, BeforeValidator(read_seconds), Field(ge=0, le=MOST)]
"""Seconds in files."""


class Schema(BaseModel):
    """Base of all file schemas: frozen, strict, finite numbers, no unknown key but ``x-…``."""

    # A schema is built when a first file is read by it: most commands read one kind of a dozen.
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_private_keys(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        for key in data:  # of every object in a file: be quick
            if str(key).startswith("x-"):
                return {k: v for k, v in data.items() if not str(k).startswith("x-")}
        return data


def key_path(location: tuple[int | str, ...]) -> str:
    """Format a pydantic location as a path, e.g. ``('ops', 3, 'time')`` as ``ops[3].time``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else str(part)
    return path or "top level"


def parse(schema: type[ModelT], data: object, source: str) -> ModelT:
    """Validate ``data`` against ``schema``.

    Raises:
        FormatError: naming ``source``, every faulty key path and what is wrong there.
    """
    _check_format(schema, data, source)
    try:
        return schema.model_validate(data)
    except ValidationError as error:
        reasons_by_path: dict[tuple[int | str, ...], dict[str, None]] = {}
        branches = set()
        for fault in error.errors(include_url=False):
            path = _find_fault_path(data, fault)
            reasons_by_path.setdefault(path, {})[_said(fault)] = None
            branches |= {path} if path != fault["loc"] else set()
        for path in branches:  # of a union, the branch that was read furthest says most
            if any(path == longer[: len(path)] != longer for longer in reasons_by_path):
                del reasons_by_path[path]
        deepest = [
            f"{key_path(path)}: {', or '.join(reasons)}"
            for path, reasons in reasons_by_path.items()
        ]
        raise join_faults(FormatError, deepest, source) from None


def _find_fault_path(data: object, fault: ErrorDetails) -> tuple[int | str, ...]:
    """Return where a fault is in a file, without pydantic's names of a union's branches."""
    location = fault["loc"]
    path: list[int | str] = []
    for part in location:
        if isinstance(data, dict):
            is_key = part in data
        else:
            is_key = isinstance(data, list) and isinstance(part, int)
        if is_key:
            items: Any = data
            data = items[part]
            path.append(part)
    if fault["type"] == "missing":
        path.append(location[-1])
    return tuple(path)


def _check_format(schema: type[BaseModel], data: object, source: str) -> None:
    """Refuse a file of ours of another kind in one line, instead of all its keys."""
    if not isinstance(data, dict):
        return
    format_name = str(data.get("format", ""))
    if not format_name.startswith("gnnplace-"):
        return
    field = schema.model_fields.get("format")
    if field is None:
        wanted = "another kind"
    else:
        formats = get_args(field.annotation)
        if not formats or format_name in formats:
            return
        wanted = formats[0]
    raise FormatError(
        f"{source}: format: it is a {format_name} file; {wanted} is wanted here"
    )


def fault_line(fault: ErrorDetails) -> str:
    """Return a fault as pydantic tells it, as its key path and what is wrong there."""
    return f"{key_path(fault['loc'])}: {_said(fault)}"


def _said(fault: ErrorDetails) -> str:
    message: str = fault["msg"]
    plain = PLAIN_MESSAGES.get(fault["type"])
    if plain is not None:
        context = fault.get("ctx", {})
        message = plain.format(**context)
    return message.removeprefix("Value error, ")


def _reject_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        key = next(key for key, count in counts.items() if count > 1)
        raise InputError(f"key {key!r} is repeated in one object; keep one of the two")
    return result


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Put off looking for garbage where millions of objects are made, and all are wanted."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read_json(path: str | Path) -> Any:
    """Read a UTF-8 JSON file; repeated keys in one object are errors.

    Raises:
        FormatError: the file is missing, unreadable, not UTF-8 or not JSON.
    """
    return parse_json(read_text(path), path)


def parse_json(text: str, path: str | Path) -> object:
    """Return the plain data of a JSON text. Keys that repeat in one object are errors.

    Raises:
        FormatError: it is not JSON; names `path`.
    """
    try:
        return json.loads(text, object_pairs_hook=_reject_repeats)
    except json.JSONDecodeError as error:
        raise FormatError(
            f"{path}: line {error.lineno} column {error.colno}: not JSON: {error.msg}"
        ) from None
    except RecursionError:
        raise FormatError(f"{path}: nested too deeply; is it the right file?") from None
    except (InputError, ValueError) as error:
        if isinstance(error, InputError) and len(text) <= YAML:
            # JSON is YAML, and YAML's parser knows lines.
            with suppress(yaml.YAMLError, RecursionError):
                check_yaml_events(yaml.parse(text, Loader=yaml.CSafeLoader), path)
        raise FormatError(f"{path}: {error}") from None


@dataclass
class _OpenCollection:
    """A mapping or a list whose end the parser has not reached.

    Attributes:
        is_mapping: Whether its parts are keys and values by turns.
        key_lines: Line of every key of a mapping so far, from 1.
        expects_key: Whether the next part is a key.
    """

    is_mapping: bool
    key_lines: dict[str, int] = field(default_factory=dict)
    expects_key: bool = True


def check_yaml_events(events: Iterable[yaml.Event], source: str | Path) -> None:
    """Refuse YAML whose parts are nested too deeply, or whose mappings have a key twice.

    Args:
        events: The parser's events.
        source: What is read, for an error.

    Raises:
        FormatError: A key stands twice in one mapping; with both lines.
        RecursionError: Parts are nested more than `NESTED` deep.
    """
    open_collections: list[_OpenCollection] = []
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            open_collections.pop()
            continue
        is_node = isinstance(event, yaml.NodeEvent)
        if is_node and open_collections and open_collections[-1].is_mapping:
            parent = open_collections[-1]
            if parent.expects_key and isinstance(event, yaml.ScalarEvent):
                if event.start_mark:
                    line = event.start_mark.line + 1
                else:
                    line = 0
                if event.value in parent.key_lines:
                    first_line = parent.key_lines[event.value]
                    raise FormatError(
                        _repeated_key(source, event.value, first_line, line)
                    )
                parent.key_lines[event.value] = line
            parent.expects_key = not parent.expects_key
        if isinstance(event, yaml.CollectionStartEvent):
            open_collections.append(
                _OpenCollection(isinstance(event, yaml.MappingStartEvent))
            )
            if len(open_collections) > NESTED:
                raise RecursionError


def _repeated_key(source: str | Path, key: str, first_line: int, line: int) -> str:
    if line == first_line:
        place = f"line {line}"
    else:
        place = f"lines {first_line} and {line}"
    return f"{source}: {place}: key {key!r} is repeated; keep one of the two"


def read_yaml(path: str | Path, loader: YamlLoader = yaml.CSafeLoader) -> object:
    """Read a UTF-8 YAML file of plain data.

    Raises:
        FormatError: the file is missing, unreadable, not UTF-8 or not YAML; names the place.
    """
    return parse_yaml(read_text(path), path, loader)


def parse_yaml(
    text: str, source: str | Path, loader: YamlLoader = yaml.CSafeLoader
) -> object:
    """Return the plain data of a YAML text.

    A text of more than `YAML` characters is read as JSON.

    Raises:
        FormatError: it is not YAML, or has a tag that makes more than plain data; names `source`.
    """
    if len(text) > YAML:
        if text.lstrip()[:1] in ("{", "["):
            return parse_json(text, source)
        raise FormatError(
            f"{source}: has {len(text) / 1e6:.0f} MB; YAML is read up to "
            f"{YAML / 1e6:.0f} MB: write it as JSON, which is YAML too"
        )
    try:
        # Making data of a text that is nested too deeply would end the process.
        check_yaml_events(yaml.parse(text, Loader=loader), source)
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        if mark:
            position = f"line {mark.line + 1} column {mark.column + 1}"
        else:
            position = "unreadable"
        problem = str(getattr(error, "problem", None) or "syntax error")
        raise FormatError(
            f"{source}: {position}: not YAML: {' '.join(problem.split())}"
        ) from None
    except RecursionError:
        raise FormatError(
            f"{source}: nested too deeply; is it the right file?"
        ) from None
    except (FormatError, OSError):
        raise
    except (ValueError, OverflowError, TypeError, AttributeError) as error:
        # Dates and the like.
        raise FormatError(
            f"{source}: not YAML: {' '.join(str(error).split())}"
        ) from None


def read_text(path: str | Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        FormatError: the file is missing, unreadable or not UTF-8.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: byte {error.start}: not UTF-8 text") from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}") from None


def write_whole(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file completely or not at all.

    A temporary file beside ``path`` is filled and renamed over it. A symbolic link stays and the
    file that it leads to is replaced. What is no regular file, such as a terminal, a pipe or
    ``/dev/null``, is written to in place.

    Raises:
        InputError: the folder does not exist or cannot be written to, or the disk is full.
    """
    try:
        if is_written_in_place(path):
            _write_in_place(path, write)
        else:
            _replace(Path(os.path.realpath(path)), write)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written: {error.strerror or error}"
        ) from None


def is_written_in_place(path: str | Path) -> bool:
    """Return whether a path is written to directly, because it is no regular file."""
    if find_descriptor(path) is not None:
        return True
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # nothing there yet
        return False


def find_descriptor(path: str | Path) -> int | None:
    """Return the open descriptor that a path such as ``/dev/stdout`` names, if any."""
    match = DESCRIPTOR.fullmatch(os.path.normpath(path))
    if match is None:
        return None
    stream = match[1]
    number = match[2]
    if number:
        return int(number)
    return ("stdin", "stdout", "stderr").index(stream)


def _write_in_place(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Write all of it at once; a descriptor goes on from where it stands."""
    content = BytesIO()
    write(content)
    descriptor = find_descriptor(path)
    sys.stdout.flush()  # what was printed before comes before it
    with open(path if descriptor is None else os.dup(descriptor), "wb") as file:
        file.write(content.getbuffer())


def _replace(target: Path, write: Callable[[BinaryIO], object]) -> None:
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all; raises as ``write_whole``."""
    write_whole(path, lambda file: file.write(text.encode()))


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows of cells as CSV. The first row has the headings."""
    file = StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def write_arrays(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed npz without pickle, whole or not at all; raises as ``write_whole``."""
    write_whole(
        path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays)
    )


def write_json(path: str | Path, data: object) -> None:
    """Write ``data`` as JSON atomically; NaN and infinity are refused."""
    write_text(path, json.dumps(data, allow_nan=False) + "\n")


@contextmanager
def silent(descriptor: int) -> Iterator[None]:
    """Drop what libraries print, 1: on standard output, or 2: on standard error."""
    sys.stdout.flush()
    flush = ctypes.CDLL(None).fflush
    flush(None)
    saved_descriptor = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, descriptor)
        yield
    finally:
        flush(None)
        os.dup2(saved_descriptor, descriptor)
        os.close(saved_descriptor)
        os.close(nowhere)
