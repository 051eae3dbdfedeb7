"""Tests the ring with a reader that has died."""

import pytest

from argosy.stream.ring import Ring
from argosy.stream.wire import Peer


def test_a_reader_that_has_died_before_it_was_lent_the_ring_is_an_end_of_file() -> None:
    ours, theirs = Peer.pair()
    theirs.close()
    Ring(slots=2, slot_bytes=64).lend(ours, {}, {"train": 1})
    with pytest.raises(EOFError):
        ours.receive()
