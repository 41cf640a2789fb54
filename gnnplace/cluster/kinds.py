"""Names of device kinds: the same kind must be spelt the same everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from gnnplace.cluster.cluster import Cluster
from gnnplace.errors import InputError


def check_spelling(cluster: Cluster, known: Iterable[str]) -> None:
    """Refuses a kind of the cluster that is unknown and is a known one, spelt differently.

    Args:
        cluster: whose devices' kinds are looked at.
        known: kinds that ops have a time for.

    Raises:
        InputError: naming the device and both spellings.
    """
    kinds = list(known)
    plain = {_plain(kind): kind for kind in kinds}
    for i, device in enumerate(cluster.devices):
        meant = plain.get(_plain(device.kind), device.kind)
        if device.kind not in kinds and meant != device.kind:
            raise InputError(
                f"devices[{i}].kind: no op has a time for {device.kind!r} but ops have for "
                f"{meant!r}; write both alike"
            )


def _plain(kind: str) -> str:
    return "".join(letter for letter in kind.lower() if letter.isalnum())
