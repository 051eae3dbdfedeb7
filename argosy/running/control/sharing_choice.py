"""Choice of how the nodes of a run share its streams: by the settings, or by measurement."""

from collections.abc import Mapping, Sequence

from argosy.cluster import Cluster
from argosy.planning.pipeline import Choice, Exchange, Needs, choose_pipeline
from argosy.plans import Flotilla
from argosy.protocol.events import SharingChosen
from argosy.protocol.feeder import Probed
from argosy.settings import Settings

__all__ = ["SharingChoice"]


class SharingChoice:
    """The pipeline of a run; ``local`` until it is chosen, so that members can be measured meanwhile."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.chosen = _choice_of_settings(settings)
        self.is_journaled: bool = False
        """Whether the choice was returned to be journaled."""
        self.waiting_for: set[str] = set()
        """Feeders that are still measuring."""
        self._probed: list[Probed] = []

    @property
    def pipeline(self) -> tuple[str, int]:
        """Name of the pipeline and number of preparing nodes; if that exceeds the nodes of a leg, all of them prepare."""
        return ("local", 1) if self.chosen is None else (self.chosen.sharing, self.chosen.preparing)

    def ask(self, feeders: Sequence[str]) -> None:
        """Note that feeders are measuring."""
        self.waiting_for, self._probed = set(feeders), []

    def handle(self, feeder: str, probed: Probed) -> None:
        """Handle an answer; unexpected ones belong to an aborted measurement."""
        if feeder in self.waiting_for:
            self.waiting_for.discard(feeder)
            self._probed.append(probed)

    @property
    def measured(self) -> bool:
        """Whether all feeders that were asked have answered."""
        return bool(self._probed) and not self.waiting_for

    def choose(self, cluster: Cluster, flotilla: Flotilla, *, preparation_seconds: float) -> SharingChosen:
        """Decide for a flotilla; `preparation_seconds` per sample are used if no feeder measured."""
        probed = self._probed
        seconds = sum(p.cpu_seconds_per_sample for p in probed) / len(probed) if probed else preparation_seconds
        needs = Needs(
            nodes=len(cluster.nodes),
            cores=min(node.cores for node in cluster.nodes),
            preparation_seconds=seconds,
            sample_bytes=probed[0].sample_bytes if probed else 0,
            demand_samples_per_second=flotilla.samples_per_second,
            training_cpu_seconds=_training_cpu_seconds(cluster, flotilla),
        )
        choice = choose_pipeline(needs, _exchanges(probed))
        if self.chosen is None:
            self.chosen = choice
        self.is_journaled = True
        unasked = self.settings.sharing == "auto" and self.settings.nodes == 1 < len(cluster.nodes)
        return SharingChosen(
            sharing=self.chosen.sharing,
            preparing=self.chosen.preparing,
            loader_workers=choice.loader_workers,
            reason="nodes may come and go; without --nodes, the run waits for none" if unasked else self.chosen.reason,
        )


def _choice_of_settings(settings: Settings) -> Choice | None:
    """Return the choice that the settings determine; None if it has to be measured."""
    if settings.sharing == "auto" and settings.nodes > 1:
        return None
    if settings.sharing == "none":
        reason = "every member has its own pipeline: policy solo"
    else:
        reason = "one node" if settings.nodes == 1 else f"set by sharing={settings.sharing!r}"
    preparing = 1 if settings.sharing == "single-broadcast" else settings.nodes
    return Choice(
        sharing="local" if settings.sharing == "auto" else settings.sharing,
        preparing=settings.preparing_nodes or preparing,
        loader_workers=0,
        samples_per_second=0.0,
        reason=reason,
    )


def _exchanges(answers: Sequence[Probed]) -> list[Exchange]:
    """Return for each pipeline the rate of the slowest node and the total cost."""
    measured: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for probed in answers:
        for sharing, preparing, rate, cpu in probed.exchanges:
            measured.setdefault((sharing, preparing), []).append((rate, cpu))
    return [
        Exchange(
            sharing=sharing,
            preparing=preparing,
            bytes_per_second=min(rate for rate, _ in costs),
            cpu_seconds_per_byte=sum(cpu for _, cpu in costs),
        )
        for (sharing, preparing), costs in measured.items()
    ]


def _training_cpu_seconds(cluster: Cluster, flotilla: Flotilla) -> float:
    """Return the training CPU time per sample on the busiest node; 0 unless devices are CPUs."""
    nodes: Mapping[str, str] = {device.name: device.node for device in cluster.devices if device.kind == "cpu"}
    seconds = dict.fromkeys((node.name for node in cluster.nodes), 0.0)
    for placement in flotilla.placements:
        for device in placement.devices:
            if device in nodes:
                seconds[nodes[device]] += placement.seconds_on(device)
    return max(seconds.values())
