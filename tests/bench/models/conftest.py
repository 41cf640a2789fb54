"""One thread, as on a worker."""

from tests.zoo.conftest import _one_thread as _one_thread
