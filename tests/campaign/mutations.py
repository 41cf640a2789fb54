"""Changes valid files into faulty ones: first their trees, then their text, then their bytes."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from random import Random
from typing import Any

import numpy as np
import yaml

HUGE = 10**400
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, HUGE, -HUGE, 0.5, -0.0, 1e308, -1e308,
    5e-324, float("nan"), float("inf"), -float("inf"), "", " ", "0", "nan", "x" * 5000, "\x00",
    "\ud800", "a\nb", "é\u202e", [], {}, [[]], [None], {"": {}}, [1, "1"], {"x-": 1},
]  # fmt: skip
Path = tuple[Any, ...]


def paths(tree: Any, path: Path = ()) -> list[Path]:
    """Of all parts of a tree of lists and dicts."""
    found = [path]
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            found += paths(value, (*path, key))
    return found


def part(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def changed_tree(tree: Any, rng: Random) -> Any:
    """A tree with one to three parts changed."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice(paths(tree))
        if not path:
            if rng.random() < 0.05:
                return copy.deepcopy(rng.choice(STRANGE))
            continue
        _change(part(tree, path[:-1]), path[-1], tree, rng)
    return tree


def _change(above: Any, key: Any, tree: Any, rng: Random) -> None:
    kind = rng.randrange(9)
    if kind == 0:
        del above[key]
    elif kind == 1:
        above[key] = copy.deepcopy(rng.choice(STRANGE))
    elif kind == 2:
        above[key] = copy.deepcopy(part(tree, rng.choice(paths(tree))))
    elif kind == 3:
        above[key] = _other_type(above[key])
    elif kind == 4:
        above[key] = _other_number(above[key], rng)
    elif kind == 5 and isinstance(above, dict):
        above[f"{key}{rng.choice(['', 's', ' ', 'é'])}"] = above.pop(key)
    elif kind == 6 and isinstance(above, dict):
        above[rng.choice(["", "x-mine", "extra", "__proto__", "name"])] = rng.choice(
            STRANGE
        )
    elif kind == 7 and isinstance(above, list):
        above += copy.deepcopy(above) * rng.randint(1, 3)
    elif kind == 8 and isinstance(above, list):
        rng.shuffle(above)
    else:
        above[key] = [above[key]] * rng.randint(0, 3)


def _other_type(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, list):
        return {str(i): v for i, v in enumerate(value)}
    return [value]


def _other_number(value: Any, rng: Random) -> Any:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < 1e15
    ):
        return rng.choice([0, -1, 1.5])
    return rng.choice(
        [-value, value + 1, value * 1e12, value * 1e-12, value / 3, int(value), 0]
    )


def as_json(tree: Any) -> bytes:
    return json.dumps(tree, allow_nan=True).encode("utf-8", "surrogatepass")


def as_yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=False, sort_keys=False).encode()


def changed_text(content: bytes, rng: Random) -> bytes:
    """Text with a change of encoding, of a token or of nesting."""
    kind = rng.randrange(9)
    if kind == 0:
        return content.decode("utf-8", "replace").encode(
            rng.choice(["utf-16", "utf-32", "utf-7"])
        )
    if kind == 1:
        return b"\xef\xbb\xbf" + content
    if kind == 2:
        return content.replace(b"{", b"{" * rng.choice([2, 50, 100_000]), 1)
    if kind == 3:
        return content.replace(b"[", b"[" * rng.choice([2, 50, 100_000]), 1)
    if kind == 4:
        tokens = [
            b"NaN",
            b"1e999",
            b"-",
            b"0x10",
            b"1_000",
            b"!!python/object:os.system",
            b"*a",
        ]
        digits = [i for i, byte in enumerate(content) if chr(byte).isdigit()]
        if not digits:
            return content
        at = rng.choice(digits)
        return content[:at] + rng.choice(tokens) + content[at + 1 :]
    if kind == 5:
        quote = rng.choice([b'"', b"'", b":", b",", b"\t", b"\n", b"#", b"&a "])
        at = rng.randrange(len(content) + 1)
        return content[:at] + quote + content[at:]
    if kind == 6:
        return content + content
    if kind == 7:
        return b""
    return changed_bytes(content, rng)


def changed_bytes(content: bytes, rng: Random) -> bytes:
    """Bytes cut short, flipped, repeated or filled in."""
    if not content:
        return content
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(content)))
        kind = rng.randrange(5)
        if kind == 0:
            content = content[:at]
        elif kind == 1 and content:
            content = content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
        elif kind == 2:
            content = content[:at] + content[at + rng.randint(1, 64) :]
        elif kind == 3:
            content = (
                content[:at]
                + bytes(rng.randrange(256) for _ in range(8))
                + content[at:]
            )
        else:
            content = content[:at] + content[at : at + 32] * 2 + content[at:]
    return content


def changed_arrays(arrays: dict[str, np.ndarray], rng: Random) -> bytes:
    """An npz archive with an entry of another type, shape or value, or without it."""
    arrays = dict(arrays)
    name = rng.choice(sorted(arrays))
    array, kind = arrays[name], rng.randrange(9)
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        with contextlib.suppress(ValueError):  # text that is no number
            arrays[name] = array.astype(
                rng.choice(["U8", "c16", "f4", "i1", "?", "S3"])
            )
    elif kind == 2:
        arrays[name] = array.reshape(-1)[: rng.randint(0, 3)]
    elif kind == 3:
        arrays[name] = array[None]
    elif kind == 4:
        arrays[name] = np.array(
            rng.choice([0.0, -1.0, np.nan, np.inf, "{}", "[]", 1e300])
        )
    elif kind == 5:
        arrays[name] = np.array([{"pickled": 1}], dtype=object)
    elif kind == 6 and array.dtype.kind in "if" and array.size:
        array = array.copy()
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice([-1, 127, 0])
        arrays[name] = array
    elif kind == 7 and array.dtype.kind == "f" and array.size:
        array = array.copy()
        array.reshape(-1)[rng.randrange(array.size)] = rng.choice(
            [np.nan, -np.inf, 1e30]
        )
        arrays[name] = array
    else:
        arrays[rng.choice(["extra", "", "../up"])] = array
    content = io.BytesIO()
    np.savez(content, allow_pickle=True, **{k or "empty": v for k, v in arrays.items()})
    return content.getvalue()
