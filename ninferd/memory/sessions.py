"""Which conversation is the newest of each session key. A hint for retention; tokens decide what is reused."""

from __future__ import annotations

from ninferd.memory.snapshots import SHARED, Snapshot
from ninferd.memory.value import RetentionClass


class SessionIndex:
    """Session key -> lineage of its newest publication, by the order in which the requests were admitted."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, int]] = {}  # key -> (order, lineage)

    def __len__(self) -> int:
        return len(self._newest)

    def publish(self, session: str, order: int, lineage: int) -> None:
        """A request published a snapshot; one that was admitted earlier cannot displace a later one."""
        if session and order >= self._newest.get(session, (0, 0))[0]:
            self._newest[session] = (order, lineage)

    def forget(self, lineage: int) -> int:
        """The last snapshot of a lineage is gone; how many keys named it."""
        gone = [session for session, (_, newest) in self._newest.items() if newest == lineage]
        for session in gone:
            del self._newest[session]
        return len(gone)

    def retention(self, snapshot: Snapshot) -> RetentionClass:
        """How likely its conversation is to come back to it."""
        if snapshot.superseded:
            return "disposable"
        newest = self._newest.get(snapshot.session)
        if newest is not None and newest[1] == snapshot.lineage and snapshot.lineage != SHARED:
            return "live_session"
        return "recent_private"
