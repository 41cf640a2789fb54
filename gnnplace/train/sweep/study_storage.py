"""Where a sweep keeps its trials, by URL; several workers may open one storage at once.

``journal:///PATH`` is a file of lines, ``sqlite:///PATH`` a SQLite database (three slashes before a
relative path, four in all before an absolute one); any other URL goes to SQLAlchemy, so
``postgresql://user:password@host/database`` serves many machines (its driver is a package of its
own: psycopg).

A worker that was killed leaves its trial running. In a database each worker's heartbeat tells,
after ``GRACE`` seconds; on the same machine its process number tells at once, in any storage.
"""

from __future__ import annotations

import json
import random
import time
import warnings
from pathlib import Path

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from gnnplace.errors import InputError

JOURNAL, SQLITE = "journal:///", "sqlite:///"
BEAT, GRACE = 30, 120  # seconds
ATTEMPTS = 12
RETRY_OF = "retry of"


def open_storage(url: str) -> BaseStorage:
    """The storage at ``url``, made if it is not there.

    Raises:
        InputError: it cannot be opened; says why.
    """
    for start in (JOURNAL, SQLITE):
        if url.startswith(start) and url != start:
            _make_folder(url, Path(url.removeprefix(start)).parent)
    if url.startswith(JOURNAL):
        return _open_journal(url)
    return _open_database(url)


def _make_folder(url: str, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--storage {url}: {folder}: {error.strerror}") from None


def _open_journal(url: str) -> JournalStorage:
    # Absolute, and locked by a file: a link to a relative path would dangle.
    path = Path(url.removeprefix(JOURNAL)).resolve()
    try:
        _check_journal(path)
        return JournalStorage(JournalFileBackend(str(path), JournalFileOpenLock(str(path))))
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"--storage {url}: not a journal of trials: {error}") from None


def _check_journal(path: Path) -> None:
    """Optuna takes a last line that is not JSON for one half-written, and would go on after it."""
    if path.exists():
        with open(path, encoding="utf-8") as file:
            first = file.readline()
        if first and "op_code" not in json.loads(first):
            raise ValueError("line 1 is no record")


def _open_database(url: str) -> RDBStorage:
    """Tries again where two workers make the tables at the same instant."""
    for attempt in range(ATTEMPTS):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                return RDBStorage(
                    url,
                    heartbeat_interval=BEAT,
                    grace_period=GRACE,
                    heartbeat_stale_trial_callback=requeue,
                )
        except (ArgumentError, NoSuchModuleError):
            break
        except ImportError:
            raise InputError(f"--storage {_plain(url)}: install this database's driver") from None
        except SQLAlchemyError as error:
            if attempt == ATTEMPTS - 1:
                why = str(error).splitlines()[0]
                raise InputError(f"--storage {_plain(url)}: {why}") from None
            time.sleep(0.2 * random.Random().random())
    known = f"{JOURNAL}PATH, {SQLITE}PATH or a database's URL"
    raise InputError(f"--storage {_plain(url)}: not a storage; give {known}")


def _plain(url: str) -> str:
    """``url`` without a password."""
    start, at, host = url.rpartition("@")
    return f"{start.rsplit(':', 1)[0]}:***@{host}" if at else url


def open_study(url: str, name: str, sampler: BaseSampler, pruner: BasePruner) -> optuna.Study:
    """The study ``name`` in the storage at ``url``, made or continued; less is better.

    Raises:
        InputError: the storage cannot be opened.
    """
    return optuna.create_study(
        storage=open_storage(url),
        study_name=name,
        sampler=sampler,
        pruner=pruner,
        direction="minimize",
        load_if_exists=True,
    )


def requeue(study: optuna.Study, trial: FrozenTrial) -> None:
    """Queues the values of a failed trial again, once: what fails twice has a reason."""
    if trial.params and RETRY_OF not in trial.user_attrs:
        study.enqueue_trial(trial.params, user_attrs={RETRY_OF: trial.number})
