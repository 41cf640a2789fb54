"""Names of device kinds: the same kind must be spelt the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from gnnplace.problem.cluster.cluster import Cluster


def spelling_faults(cluster: Cluster, known: Iterable[str]) -> list[str]:
    """Kinds of a cluster that are unknown and are a known one, spelt differently.

    Args:
        cluster: whose devices' kinds are looked at.
        known: kinds that ops have a time for.
    """
    kinds = list(known)
    plain = {_plain(kind): kind for kind in kinds}
    return [
        f"devices[{i}].kind: no op has a time for {device.kind!r} but ops have for "
        f"{plain[_plain(device.kind)]!r}; write both alike"
        for i, device in enumerate(cluster.devices)
        if device.kind not in kinds and _plain(device.kind) in plain
    ]


def _plain(kind: str) -> str:
    return "".join(letter for letter in kind.lower() if letter.isalnum())
