"""Session keys: the newest conversation of each, by order of admission, and what that does to retention."""

from __future__ import annotations

import pytest

from ninferd.memory.identity import Tokens
from ninferd.memory.page_columns import NO_HANDLES
from ninferd.memory.sessions import SessionIndex
from ninferd.memory.snapshots import SHARED, Snapshot
from ninferd.memory.state_images import StateImage


def _snapshot(session: str, lineage: int, *, superseded: bool = False) -> Snapshot:
    return Snapshot(
        64, Tokens.of_text([]), NO_HANDLES, StateImage(), "endpoint", lineage, session=session, superseded=superseded
    )


def test_a_later_admission_takes_the_key_and_an_earlier_one_cannot() -> None:
    sessions = SessionIndex()
    sessions.publish("s", 5, 1)
    sessions.publish("s", 4, 2)
    assert sessions.retention(_snapshot("s", 1)) == "live_session"
    assert sessions.retention(_snapshot("s", 2)) == "recent_private"
    sessions.publish("s", 6, 2)
    assert sessions.retention(_snapshot("s", 2)) == "live_session"


@pytest.mark.parametrize(
    ("snapshot", "retention"),
    [
        (_snapshot("s", 1), "live_session"),
        (_snapshot("s", 1, superseded=True), "disposable"),
        (_snapshot("", 1), "recent_private"),
        (_snapshot("s", SHARED), "recent_private"),
    ],
    ids=["newest", "superseded", "no key", "shared"],
)
def test_retention(snapshot: Snapshot, retention: str) -> None:
    sessions = SessionIndex()
    sessions.publish("s", 1, 1)
    assert sessions.retention(snapshot) == retention


def test_a_lost_conversation_is_forgotten() -> None:
    sessions = SessionIndex()
    for key, lineage in (("s", 1), ("t", 1), ("u", 2), ("", 3)):
        sessions.publish(key, 1, lineage)
    assert len(sessions) == 3  # a request without a key is nobody's session
    assert sessions.forget(1) == 2
    assert len(sessions) == 1
