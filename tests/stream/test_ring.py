"""The ring and readers that die."""

from multiprocessing import Pipe

import pytest

from argosy.stream.ring import Ring


def test_a_reader_that_has_died_before_it_was_lent_the_ring_is_an_end_of_file() -> None:
    ours, theirs = Pipe()
    theirs.close()
    Ring(slots=2, slot_bytes=64).lend(ours, {}, {"train": 1})
    with pytest.raises(EOFError):
        ours.recv_bytes()
