"""New legs: what the policy starts on free devices, and how the nodes of a leg share its stream."""

from collections.abc import Iterable
from dataclasses import replace

from argosy.cluster import Cluster, Node
from argosy.planning import SKIPPING, Situation
from argosy.plans import Flotilla, Plan
from argosy.protocol.events import Split
from argosy.protocol.feeder import Leg, Probed
from argosy.running.control.barriers import assignments_of
from argosy.running.control.carry_out import ActingPart, CarryOut
from argosy.running.control.legs import LiveLeg
from argosy.running.control.run import Run
from argosy.running.control.sharing_choice import SharingChoice
from argosy.running.control.worker_pool import FedLeg, Feeder

__all__ = ["LegStarts"]


class LegStarts(ActingPart):
    """Starts the legs of one run."""

    def __init__(self, run: Run, carry_out: CarryOut) -> None:
        super().__init__(run, carry_out)
        self.sharing: SharingChoice = SharingChoice(run.settings)
        self.measuring_leg: FedLeg | None = None
        """The leg that members were measured on; None once one of its workers is lost."""
        self.nodes: list[Node] = []
        """Nodes that have come; their workers start when no member is being measured."""
        self.unopened: set[str] = set()
        """Nodes that have come, and have not opened the data yet."""
        known = run.state.members
        self.splits: dict[str, Split] = {
            name: member.split for name, member in known.items() if member.split is not None
        }
        """Device shares that an earlier driver used, of members that this one has not started; other shares would round differently."""
        self._asked = False
        """Whether the policy has been asked; from then on it stays the same."""

    # ---- nodes

    def admit_nodes(self) -> None:
        """Start workers on nodes that have come; the policy may use a node once its data are open."""
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            self.unopened.add(node.name)
            self.carry_out.admit(node)

    def handle_opened(self, node: str) -> None:
        """Handle a feeder that has opened its data; if its node came later, every member may be placed there."""
        self.run.wants_plan = True
        if node in self.unopened:
            self.unopened.discard(node)
            self.update_cluster()
            self.carry_out.make_room()

    def update_cluster(self) -> None:
        """Tell the policy which nodes can be used."""
        nodes = self.run.cluster.nodes
        opened = tuple(node for node in nodes if node.name not in self.unopened)
        # If all other nodes are gone, plans wait until the new ones have opened their data.
        self.planner.cluster = Cluster(nodes=opened or nodes)

    def discard_measurements(self) -> None:
        """Discard joint measurements, because a worker is lost or its exchange broke."""
        self.update_cluster()
        self.measuring_leg = None
        self.sharing.ask(())

    # ---- new legs

    def launch(self) -> None:
        """Ask the policy what to start on free devices, and start it."""
        run = self.run
        if run.pause_reason is not None or not self.members.waiting or self.legs.regrouping:
            return
        if not self.legs.live and self.decisions.has_returning_members:
            return  # No member trains meanwhile, and the policy should choose among all that are left.
        plan = self.plan()
        self.members.end_recovery(plan.waiting)
        if plan.flotillas and not self.sharing.is_journaled and not self._choose_sharing(plan.flotillas[0]):
            return
        started = [flotilla for flotilla in plan.flotillas if self._start(flotilla)]
        self.carry_out.release_idle()
        if started:
            # Some policies answer with one flotilla at a time, and devices may be left for another one.
            idle = len(set(self.legs.devices)) < len(self.pool.devices)
            run.wants_plan = bool(self.members.waiting) and idle
            self.carry_out.publish(plan)

    def plan(self) -> Plan:
        """Return what the policy starts on free devices."""
        profiles = self.decisions.profiles(self.decisions.members_to_start())
        self.carry_out.record(*self.predictions.note_profiles(profiles))
        situation = self.decisions.situation(profiles, {})
        with self.predictions.time_planning():
            self._foresee(situation)
            planned = self.planner.launch(situation, tuple(self.splits.values()))
        return replace(planned, notes=self.cost_table.notes)

    def _foresee(self, situation: Situation) -> None:
        """Before its first plan, tell ``balanced`` how far all members train, if none may end sooner or join later."""
        first, self._asked = not self._asked, True
        run, waiting = self.run, [profile.member for profile in situation.waiting]
        has_the_choice = run.settings.policy == "balanced" and not run.packs and not run.bringers
        side_by_side = len(situation.devices) > 1 and self.pool.workers.side_by_side
        if first and has_the_choice and side_by_side and all(map(self.positions.is_sure_to_reach_limit, waiting)):
            self.planner.switch_policy(situation)

    def free_team(self, devices: Iterable[str]) -> list[Feeder] | None:
        """Return feeders for a leg on these devices, one per node; None until every node has one."""
        return self.pool.free_team(devices, (feeder for leg in self.legs.live for feeder in leg.feeders))

    def _start(self, flotilla: Flotilla) -> bool:
        """Start a flotilla and return whether it is under way; if a node lacks a feeder, the policy is asked again later."""
        team = self.free_team(flotilla.devices)
        if team is None:
            return False
        if self.planner.policy_name in SKIPPING:
            self.positions.align_epochs(flotilla.members)
        stretch = self.positions.leg_for(flotilla.members, self.run.lengths)
        fed = self._reuse_measuring_leg(team, stretch) or self.carry_out.feed(team, stretch, self.sharing.pipeline)
        names, number = tuple(feeder.name for feeder in fed.team), fed.leg.number
        leg = LiveLeg(number=number, feeders=names, until=stretch.section, begins=stretch, flotilla=flotilla)
        self.splits = {name: split for name, split in self.splits.items() if name not in flotilla.members}
        self.carry_out.begin_leg(leg, assignments_of(flotilla), fed.assignment)
        return True

    def _reuse_measuring_leg(self, team: Iterable[Feeder], stretch: Leg) -> FedLeg | None:
        """Return the leg that members were measured on if it continues as this one; otherwise stop its preparation."""
        fed, self.measuring_leg = self.measuring_leg, None
        if fed is None:
            return None
        same_nodes = {feeder.node for feeder in fed.team} == {feeder.node for feeder in team}
        if same_nodes and replace(fed.leg, number=0) == stretch and fed.sharing == self.sharing.pipeline[0]:
            return fed
        self.pool.stop_feeding(feeder.name for feeder in fed.team)
        return None

    # ---- sharing

    def _choose_sharing(self, flotilla: Flotilla) -> bool:
        """Decide how nodes share the stream; return False while that is being measured, after which the policy is asked again."""
        sharing, cluster = self.sharing, self.run.cluster
        if sharing.chosen is None and len(cluster.nodes) > 1 and not sharing.measured:
            team = self.free_team(self.pool.devices)
            if team is not None and not sharing.waiting_for:
                sharing.ask([feeder.name for feeder in team])
                self.pool.probe(team)
            return False
        self.carry_out.set_sharing(
            sharing.choose(cluster, flotilla, preparation_seconds=self.planner.preparation_seconds)
        )
        return True

    def handle_probed(self, worker: str, probed: Probed) -> None:
        """Handle a feeder's measurement of the cost of sharing."""
        self.sharing.handle(worker, probed)
        if self.sharing.measured:
            self.run.wants_plan = True
