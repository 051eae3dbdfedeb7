"""Tests that members equal a plain PyTorch loop that shares only the published order and the published seeds with Argosy."""

from pathlib import Path

import differing
import evidence
import pytest
import studies
from reference import reference

import argosy


@pytest.mark.parametrize("launcher", ["inline", "processes"])
def test_every_member_equals_a_plain_loop(tmp_path: Path, launcher: str) -> None:
    study = studies.study()
    argosy.train(study, directory=tmp_path, launcher=launcher, block_size=37, numerics="exact")
    found = evidence.results(tmp_path)
    for member in study.members:
        weights, losses = reference(member, study.data, range(2))
        differing.assert_equals_loop(member.name, found[member.name], weights, losses)


def test_members_with_fewer_samples_than_a_batch_equal_a_plain_loop(tmp_path: Path) -> None:
    """Members with small subsets, as in a learning curve, train on one batch of their whole subset."""
    fleet = [studies.member(f"of-{count}", subset=range(count), batch_size=20) for count in (3, 19, 90)]
    study = studies.study(90, fleet=fleet)
    argosy.train(study, directory=tmp_path, launcher="inline", numerics="exact")
    found = evidence.results(tmp_path)
    for member in study.members:
        weights, losses = reference(member, study.data, range(2))
        differing.assert_equals_loop(member.name, found[member.name], weights, losses)
