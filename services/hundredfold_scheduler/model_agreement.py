"""Which model is served: workers that compute it and replicas that read it have to agree."""

from __future__ import annotations

from collections.abc import Iterable

from hundredfold_scheduler.core.state import State


class ModelAgreement:
    """The model that was asked for, else that of the workers here, else that of the replicas here."""

    def __init__(self, asked: str | None, state: State) -> None:
        self._asked = asked
        self._state = state
        self._replicas: dict[str, str] = {}

    def expected(self, besides: str = "") -> str | None:
        """The fingerprint that a newcomer has to have, ``None`` for any; a replica of the name ``besides``
        has no say, being about to be superseded.
        """
        if self._asked is not None:
            return self._asked
        workers = (worker.limits.model_fingerprint for worker in self._state.workers.values())
        replicas = (model for name, model in self._replicas.items() if name != besides)
        return _first(workers) or _first(replicas)

    def joined(self, replica: str, fingerprint: str) -> None:
        """A replica is here."""
        self._replicas[replica] = fingerprint

    def left(self, replica: str) -> None:
        """A replica is gone."""
        self._replicas.pop(replica, None)


def _first(fingerprints: Iterable[str]) -> str | None:
    return next(iter(fingerprints), None)
