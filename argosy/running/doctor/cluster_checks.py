"""Pure functions that judge the findings of a job's nodes, for ``argosy doctor --cluster``.

Rank 0 is the reference: if a node differs from it, that node must be fixed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from argosy.running.doctor.checks import Check, make_check

__all__ = ["NodeInfo", "MeasuredLink", "Findings", "Samples", "judge_cluster"]

CLOCK_SECONDS = 1.0
"""Largest difference between two clocks; the journal, time limits and certificates depend on clocks."""
LEAST_BYTES_PER_SECOND = 10e6
"""Lowest bandwidth of a link; on a slower one, a checkpoint of 1 GiB would take minutes."""
MOST_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeInfo:
    """A node's description of itself."""

    rank: int
    host: str
    address: str
    """Address by which the other nodes reach it."""
    port: int
    versions: Mapping[str, str | None]

    @property
    def name(self) -> str:
        """Name for messages."""
        return f"rank {self.rank} on {self.host}"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """Result of one node's call to another."""

    to: int
    """Rank of the node that was called."""
    problem: str = ""
    """Why the node was not reached; empty if it was."""
    ahead_seconds: float = 0.0
    """Seconds by which the clock of the called node is ahead."""
    within_seconds: float = 0.0
    """Error bound of `ahead_seconds`: half a round trip."""
    bytes_per_second: float | None = None
    """Bandwidth; None if it was not measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """The study's data as one node finds them."""

    lengths: Mapping[str, int]
    fingerprints: Mapping[str, str]
    """By split: digest of a few samples."""
    problem: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Findings of one node: its links to the others, and the study's data; `samples` is None if it was given no study."""

    links: Sequence[MeasuredLink]
    samples: Samples | None


def judge_cluster(
    nodes: Sequence[NodeInfo], size: int, findings: Mapping[int, Findings], refusals: Sequence[str]
) -> list[Check]:
    """Return all checks of a job of `size` nodes, given the nodes that have called, and their findings by rank."""
    links = [
        (_node_of_rank(nodes, rank), _node_of_rank(nodes, link.to), link)
        for rank, one in findings.items()
        for link in one.links
    ]
    silent = [node for node in nodes if node.rank not in findings]
    checks = [
        judge_nodes(nodes, size, refusals),
        judge_calls(links, silent),
        judge_equal_versions(nodes),
        judge_clocks(links),
        judge_bandwidth(links),
    ]
    samples = [(_node_of_rank(nodes, rank), one.samples) for rank, one in findings.items() if one.samples is not None]
    return [*checks, judge_data(samples)] if samples else checks


def judge_nodes(nodes: Sequence[NodeInfo], size: int, refusals: Sequence[str]) -> Check:
    """Check that all nodes have called rank 0."""
    named = ", ".join(node.name for node in nodes[:MOST_NAMED])
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    fix = (
        "--dir DIR that all nodes see, or export ARGOSY_KEY=$(openssl rand -hex 32) before torchrun; if there is "
        f"a firewall, on {nodes[0].host}: iptables -I INPUT -p tcp -s ADDRESS -j ACCEPT for each of the others"
    )
    finding = "; ".join([f"{len(nodes)} of {size}: {named}{more}", *dict.fromkeys(refusals[:MOST_NAMED])])
    return make_check("nodes", finding, f"{size} that find rank 0 and prove its key", "" if len(nodes) == size else fix)


def judge_calls(links: Sequence[tuple[NodeInfo, NodeInfo, MeasuredLink]], silent: Sequence[NodeInfo]) -> Check:
    """Check that every node reaches every other one."""
    broken = [(here, there, link.problem) for here, there, link in links if link.problem]
    problems = [f"{here.name} cannot reach {there.name}: {problem}" for here, there, problem in broken]
    problems += [f"{node.name} has not reported which nodes it reaches" for node in silent]
    fixes = [f"on {there.host}: iptables -I INPUT -p tcp -s {here.address} -j ACCEPT" for here, there, _ in broken]
    fixes += [f"on {node.host}: argosy doctor" for node in silent]
    wanted = "every node reaches every other node, on ports that the kernel chooses"
    return make_check(
        "reachability", _join_first(problems) or f"{len(links)} calls succeeded", wanted, _join_first(fixes)
    )


def judge_equal_versions(nodes: Sequence[NodeInfo]) -> Check:
    """Check that all nodes have the versions of rank 0."""
    wanted = nodes[0].versions
    unlike = [(node, other) for node in nodes if (other := _other_versions(node.versions, wanted))]
    return make_check(
        "equal versions",
        _join_first(f"{node.name} has {_format_versions(other)}" for node, other in unlike) or _format_versions(wanted),
        f"{_format_versions(wanted)} on all nodes",
        _join_first(f"on {node.host}: {_install_command(other, wanted)}" for node, other in unlike),
    )


def judge_clocks(links: Sequence[tuple[NodeInfo, NodeInfo, MeasuredLink]]) -> Check:
    """Check that clocks agree with that of rank 0, within the error of the measurement."""
    seen = [(there, link) for here, there, link in links if here.rank == 0 and not link.problem]
    apart = [(there, link) for there, link in seen if abs(link.ahead_seconds) - link.within_seconds > CLOCK_SECONDS]
    widest = max((abs(link.ahead_seconds) for _, link in seen), default=0.0)
    problems = [f"{there.name} is {abs(link.ahead_seconds):.1f} s {_ahead(link)} rank 0" for there, link in apart]
    fix = _join_first(f"on {there.host}: timedatectl set-ntp true && chronyc makestep" for there, _ in apart)
    finding = _join_first(problems) or f"at most {widest:.3f} s apart"
    return make_check("clocks", finding, f"within {CLOCK_SECONDS:g} s of rank 0", fix)


def judge_bandwidth(links: Sequence[tuple[NodeInfo, NodeInfo, MeasuredLink]]) -> Check:
    """Check that no link is so slow that it would delay the transfer of checkpoints."""
    measured = [
        (link.bytes_per_second, here, there) for here, there, link in links if link.bytes_per_second is not None
    ]
    slow = [one for one in measured if one[0] < LEAST_BYTES_PER_SECOND]
    shown = slow or sorted(measured, key=lambda one: one[0])[:1]
    rates = [f"{here.name} to {there.name} {rate / 1e6:,.0f} MB/s" for rate, here, there in shown]
    fix = (
        "on {0}: ethtool $(ip -o route get {1} | grep -oP 'dev \\K\\S+') shows the speed of its link; "
        "GLOO_SOCKET_IFNAME=INTERFACE selects another one"
    )
    return make_check(
        "bandwidth",
        _join_first(rates) + ("" if slow or not rates else ", the slowest") or "nothing to measure",
        f"{LEAST_BYTES_PER_SECOND / 1e6:g} MB/s from each node to the next, all at once",
        _join_first(fix.format(here.host, there.address) for _, here, there in slow),
    )


def judge_data(samples: Sequence[tuple[NodeInfo, Samples]]) -> Check:
    """Check that all nodes find the same data as the first one."""
    (first, wanted), *others = samples
    broken = [(node, sample.problem) for node, sample in samples if sample.problem]
    unlike = [(node, sample) for node, sample in others if not (sample.problem or wanted.problem) and sample != wanted]
    problems = [f"{node.name}: {problem}" for node, problem in broken]
    problems += [f"{node.name} differs from {first.name}: {_difference(sample, wanted)}" for node, sample in unlike]
    fixes = [f"on {node.host}: make the study open its data there as it does on the others" for node, _ in broken]
    fixes += [
        f"on {node.host}: rsync -a {first.host}:DATA/ DATA/, the folder that the study reads" for node, _ in unlike
    ]
    lengths = ", ".join(f"{split}: {length:,} samples" for split, length in wanted.lengths.items())
    return make_check(
        "equal data",
        _join_first(problems) or lengths,
        "the same number of samples on all nodes, with the same bytes",
        _join_first(fixes),
    )


def _node_of_rank(nodes: Iterable[NodeInfo], rank: int) -> NodeInfo:
    return next(node for node in nodes if node.rank == rank)


def _other_versions(versions: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> Mapping[str, str | None]:
    return {name: versions.get(name) for name in wanted if versions.get(name) != wanted[name]}


def _format_versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())


def _install_command(versions: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> str:
    if "python" in versions:
        return f"an environment of Python {wanted['python']}"
    return "pip install " + " ".join(f"'{name}=={wanted[name]}'" for name in versions)


def _ahead(link: MeasuredLink) -> str:
    return "ahead of" if link.ahead_seconds > 0 else "behind"


def _difference(samples: Samples, wanted: Samples) -> str:
    for split in {**wanted.lengths, **samples.lengths}:
        counted, expected = samples.lengths.get(split, 0), wanted.lengths.get(split, 0)
        if counted != expected:
            return f"{counted:,} samples of {split} instead of {expected:,}"
    return "the same number of samples, but different bytes"


def _join_first(items: Iterable[str]) -> str:
    """Join the first `MOST_NAMED` items, and add the number of the others."""
    words = list(items)
    more = [f"and {len(words) - MOST_NAMED} more"] if len(words) > MOST_NAMED else []
    return "; ".join([*words[:MOST_NAMED], *more])
