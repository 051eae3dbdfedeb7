"""What begins: members are measured, newcomers are welcomed, and legs start on devices that are free."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from argosy.cluster import Cluster, Node
from argosy.errors import PlanError
from argosy.planning import SKIPPING, Situation
from argosy.planning.memory import require_fit
from argosy.plans import Flotilla
from argosy.protocol.events import NodeCame, PlanMade
from argosy.protocol.feeder import Credit, Leg, Probed, UseLoaders
from argosy.protocol.trainer import Assign, Measured, SumsTimed
from argosy.running.control.clones import inherit
from argosy.running.control.legs import Change, LiveLeg
from argosy.running.control.refusals import check_batch_norm, check_batches
from argosy.running.control.sharing_choice import SharingChoice
from argosy.running.control.splitting import Timing
from argosy.running.control.worker_pool import Feeder
from argosy.running.directory.study_json import write_json
from argosy.running.watch.phase import Phase
from argosy.stream.schedule import section_start

if TYPE_CHECKING:
    from argosy.running.control.scheduler import LegScheduler

__all__ = ["LegStarts", "assignments_of"]


class LegStarts:
    """Of one run."""

    def __init__(self, scheduler: "LegScheduler") -> None:
        self.scheduler, self.driver = scheduler, scheduler.driver
        self.member_table, self.pool, self.launching = scheduler.member_table, scheduler.pool, scheduler.launching
        self.sharing = SharingChoice(self.driver.settings)
        self.leg_count = 0
        self.measuring_leg: tuple[list[Feeder], Leg, int] | None = None
        """The leg that members were measured on, its team and assignment, while everybody is still there who feeds and reads
        it."""
        self.newcomers: set[str] = set()
        """Members that are to be added and are not measured yet."""
        self.nodes: list[Node] = []
        """Those that came, whose workers are to be started when nobody is being measured."""
        self.unopened: set[str] = set()
        """Those that came and whose data is not open yet."""
        self.timing = Timing(self.pool)
        self.before = {name: m.split for name, m in self.driver.state.members.items() if m.split is not None}
        """How an earlier driver had members split that this one has not started yet: what that rounds goes on as it was."""
        self._asked = False
        """Whether the policy was, so that it stays the one that it is."""

    # ---- nodes

    def admit_nodes(self) -> None:
        """Start workers on nodes that came. Nobody waits for them: the policy knows of a node when its data is open."""
        driver = self.driver
        nodes, self.nodes = self.nodes, []
        for node in nodes:
            driver.record(NodeCame(node=node.name, devices=tuple(map(asdict, node.devices))))
            driver.cluster = driver.cluster.beside(node)
            self.unopened.add(node.name)
            self.pool.admit(node)

    def opened(self, node: str) -> None:
        """A feeder of a node has opened its data: where that came later, everybody is to have room there."""
        self.scheduler.changed = True
        if node in self.unopened:
            self.unopened.discard(node)
            self.know_cluster()
            self.scheduler.make_room()

    def know_cluster(self) -> None:
        """Let the policy know which nodes can be used."""
        there = self.driver.cluster.nodes
        opened = tuple(node for node in there if node.name not in self.unopened)
        # Where all others are gone, what is planned waits for the data of those that came.
        self.launching.cluster = Cluster(nodes=opened or there)

    # ---- measuring

    def measure_at_rest(self) -> None:
        """Feed a leg to all trainers, on whose first block they measure."""
        member_table, pool = self.member_table, self.pool
        team = pool.free_team(pool.devices, ())
        if team is None:
            return
        self.leg_count += 1
        self.scheduler.assignment_count += 1
        leg = self._with_training_samples(
            member_table.leg_for(member_table.waiting, self.driver.lengths, number=self.leg_count)
        )
        pool.feed(team, leg, self.sharing.pipeline)
        ends = [member_table.last_section(name) for name in member_table.waiting]
        # A clone may be at its end already.
        horizon = None if None in ends else max(leg.section + 1, *(end for end in ends if end is not None))
        assignments = dict.fromkeys(pool.devices, self.scheduler.assignment_count)
        names = [feeder.name for feeder in team]
        for device in pool.devices:
            pool.attach(names, device)
        pool.allow(names, Credit(leg=leg.number, until=leg.section + 1, horizon=horizon, assignments=assignments))
        self.measuring_leg = (team, leg, self.scheduler.assignment_count)
        self.driver.measuring.again()
        self._measure(pool.devices, self.scheduler.assignment_count)

    def _with_training_samples(self, leg: Leg) -> Leg:
        """The leg itself, or from a block before the end of its first section: members may want fewer samples of that, or none.

        A few samples say little of what a batch takes, and are too few for some models.
        """
        length, per_epoch = self.driver.lengths["train"], self.driver.study.validations_per_epoch
        assert self.driver.data is not None
        start, stop = section_start(leg.section, length, per_epoch), section_start(leg.section + 1, length, per_epoch)
        latest = max((stop or length) - self.driver.data.block_size, start)
        return replace(leg, position=min(leg.position, latest))

    def measure_rest(self) -> None:
        """Hand out the members that are still unknown; where one failed, another one like it takes its place."""
        if self.measuring_leg is not None and self.driver.measuring.representatives:
            self._measure(self.pool.devices, self.measuring_leg[2])

    def _measure(self, devices: Iterable[str], assignment: int | None) -> None:
        measuring, study = self.driver.measuring, self.driver.study
        accumulate = {member.name: self.member_table.accumulate(member.name) for member in study.members}
        for device, command in measuring.commands(tuple(devices), assignment, accumulate).items():
            self.pool.define(device, map(study.member, command.members))
            self.pool.send(device, command)

    def time_sums(self) -> bool:
        """Find out what sums over devices take, where a member may be split; whether that is still to be waited for."""
        measuring = self.driver.measuring
        if self.timing.over or measuring.link is not None or not measuring.may_split:
            return False
        self.timing.ask(self.pool.devices)
        return True

    def sums_timed(self, device: str, timed: SumsTimed) -> None:
        """A trainer has answered."""
        link = self.timing.hear(device, timed)
        if link is not None:
            self.driver.measuring.know_link(link)

    # ---- newcomers

    def bring(self) -> None:
        """Let those join whom somebody brings."""
        driver = self.driver
        if driver.requests.pausing is not None:
            return
        brought = [new for bringer in driver.bringers for new in bringer.bring(driver.state)]
        if not brought:
            return
        members = [member for new in brought for member in new.members]
        check_batches(members, driver.lengths)
        for new in brought:
            if new.cloned is not None:
                inherit(driver.directory, new.cloned)
                driver.measuring.as_source(new.cloned.member, new.cloned.source)
            for event in new.events:
                driver.record(event)
        # Before study.json names them, which the next driver compares with what it finds here.
        driver.journal.commit()
        self.member_table.extend(members)
        driver.view.study(driver.study)
        self.expect(member.name for member in members)
        # Others may have waited for these.
        self.scheduler.call()

    def expect(self, names: Iterable[str]) -> None:
        """Members are to be added: they are in the study, and nobody knows their costs."""
        self.newcomers |= set(names)
        if self.driver.phase is Phase.TRAINING:
            self.welcome()

    def welcome(self) -> None:
        """Members are to be added: those wait at once whose like is known, the others are to be measured."""
        if self.newcomers:
            self.driver.measuring.want(map(self.driver.study.member, self.newcomers))
            self.newcomers_known()

    def measure_unknown(self) -> None:
        """Let those be measured whom nobody measures: beside members that train, or where nobody does by themselves.

        Newcomers, and members that rested: of these the measurement may have been lost before they were called.
        """
        measuring, devices = self.driver.measuring, self.scheduler.devices
        if not measuring.missing & self.newcomers.union(self.member_table.waiting):
            return
        if devices:
            measuring.only_at(devices)
            if measuring.representatives_beside:
                self._measure([min(devices, key=lambda device: len(self.scheduler.assignment_of(device)))], None)
        elif not self.scheduler.legs and not self.sharing.waiting_for:
            self.member_table.enter(self.newcomers)
            self.driver.measure()

    def measured(self, message: Measured) -> None:
        """A trainer has found out what a member costs, and so do those like it: whoever waited for that may have a place now."""
        measuring = self.driver.measuring
        trains = self.driver.phase is Phase.TRAINING
        unknown = measuring.missing.intersection(self.member_table.waiting) if trains else set()
        measuring.hear(message)
        if not unknown <= measuring.missing:
            self.scheduler.make_room()

    def measures_beside(self, member: str) -> bool:
        """Whether a member is to be added, and measured beside those that train."""
        return member in self.newcomers and self.driver.phase is not Phase.MEASURING

    def newcomers_known(self) -> None:
        """Those whose costs are known wait from here on."""
        driver, measured = self.driver, self.driver.measuring.measured
        driver.additions.settle()
        ready = (name for name in self.newcomers - driver.additions.names if name in measured)
        entering = sorted(ready, key=self.member_table.number)
        if not entering:
            return
        self.newcomers -= set(entering)
        self.member_table.enter(entering)
        driver.identity.add(driver.study, entering, measured=measured)
        self.fail_unfit(entering)
        for name in entering:
            # A clone may have come before others that it is to begin with.
            if name in self.member_table.waiting:
                driver.faults.decided(name)
        self.scheduler.make_room()

    def ended(self, member: str) -> None:
        """A member has ended: one whose costs nobody knows yet was here all the same."""
        if member in self.newcomers:
            self.newcomers.discard(member)
            self.driver.identity.add(self.driver.study, [member], measured=self.driver.measuring.measured)

    def fail_unfit(self, names: Iterable[str]) -> None:
        """Trials of a search that can train nowhere here have failed; the others go on."""
        for name in tuple(names) if self.driver.bringers else ():
            try:
                self.check_fit([name])
            except PlanError as error:
                self.member_table.leave([name])
                self.driver.end(name, "failed", str(error))

    def check_fit(self, names: Iterable[str]) -> None:
        """Raise PlanError for one of these, whose costs are known, that can train nowhere here."""
        members, measuring = [self.driver.study.member(name) for name in names], self.driver.measuring
        check_batch_norm(members, self.driver.lengths, measuring.measured)
        require_fit([measuring.profile(member) for member in members], self.launching.cluster.devices)

    def forget_measuring(self) -> None:
        """The stream that members were measured on, or somebody who read it, is gone."""
        self.measuring_leg = None
        self.timing.forget()

    # ---- new legs

    @property
    def seated(self) -> set[str]:
        """Members that have a place, and board when it has been left: who of them waits, waits for no other."""
        return {name for leg in self.scheduler.legs for boarding in leg.boarding.values() for name in boarding.start}

    def launch(self) -> None:
        """Ask the policy what to start on the devices that are free."""
        if self.driver.requests.pausing is not None or not self.member_table.waiting:
            return
        if not self.scheduler.legs and any(leaving.verdict is None for leaving in self.scheduler.leaving.values()):
            return  # Nobody trains meanwhile, and the policy is to choose among all that are left.
        measuring = self.driver.measuring
        # Whoever can join those that train is not sent off alone, before their next barrier has shown whether it can.
        later = self.member_table.joining if any(leg.holding for leg in self.scheduler.legs) else set()
        later = later | self.scheduler.recovering.not_yet() | self.seated
        names = [name for name in self.member_table.waiting if name not in later]
        profiles = measuring.profiles(names, self.driver.study)
        self.scheduler.predictions.profiled(profiles)
        situation = self.scheduler.asking.situation(profiles, {})
        with self.scheduler.predictions.planning():
            self._foresee(situation)
            found = self.launching.launch(situation, tuple(self.before.values()))
        plan = replace(found, notes=measuring.notes)
        for name in plan.waiting:
            self.scheduler.recovering.forget(name)
        if plan.flotillas and not self.sharing.told and not self._choose_sharing(plan.flotillas[0]):
            return
        started = [flotilla for flotilla in plan.flotillas if self._start_leg(flotilla)]
        self._release_idle()
        if started:
            # Some policies answer with one flotilla at a time: devices may be left for another one.
            self.scheduler.changed = bool(self.member_table.waiting) and len(set(self.scheduler.devices)) < len(
                self.pool.devices
            )
            self.driver.record(PlanMade(plan=plan.to_json()))
            write_json(self.driver.directory / "plan.json", plan.to_json())
            self.driver.view.plan(plan)

    def _foresee(self, situation: Situation) -> None:
        """Before its first plan ``balanced`` is told how far everybody trains, where nobody may end sooner or come later."""
        first, self._asked = not self._asked, True
        driver, waiting = self.driver, [profile.member for profile in situation.waiting]
        has_the_choice = driver.settings.policy == "balanced" and not driver.packs and not driver.bringers
        side_by_side = len(situation.devices) > 1 and self.pool.workers.side_by_side
        if first and has_the_choice and side_by_side and all(map(self.member_table.surely_reaches_its_limit, waiting)):
            self.launching.foresee(situation)

    def _free_team(self, devices: Iterable[str]) -> list[Feeder] | None:
        return self.pool.free_team(devices, (feeder for leg in self.scheduler.legs for feeder in leg.feeders))

    def _start_leg(self, flotilla: Flotilla) -> bool:
        """Whether it is under way; where a node has no feeder for it yet, the policy is asked again when there is one."""
        team = self._free_team(flotilla.devices)
        if team is None:
            return False
        if self.launching.policy_name in SKIPPING:
            self.member_table.level(flotilla.members)
        stretch = self.member_table.leg_for(flotilla.members, self.driver.lengths, number=self.leg_count)
        # The stream that members were measured on goes on as the first leg that begins there.
        measured, self.measuring_leg = self.measuring_leg, None
        if (
            measured is not None
            and _same_nodes(measured[0], team)
            and measured[1] == stretch
            and not self.sharing.changed
        ):
            team, _, assignment = measured
        else:
            if measured is not None:
                self.pool.rest(feeder.name for feeder in measured[0])
            self.leg_count += 1
            self.scheduler.assignment_count += 1
            assignment = self.scheduler.assignment_count
            self.pool.feed(team, replace(stretch, number=self.leg_count), self.sharing.pipeline)
        names = tuple(feeder.name for feeder in team)
        leg = LiveLeg(number=self.leg_count, feeders=names, until=stretch.section, begins=stretch)
        self.scheduler.legs.append(leg)
        self.scheduler.flotillas[leg.number] = flotilla
        self.before = {name: split for name, split in self.before.items() if name not in flotilla.members}
        self.scheduler.expect(leg, flotilla.members)
        self.scheduler.seat(leg, flotilla.members)
        for device, members in assignments_of(flotilla).items():
            leg.change(device, assignment, Change(start=tuple(members)))
            self.scheduler.board(leg, device, start=members)
        self.scheduler.predictions.begin(leg)
        self.scheduler.allow(leg, leg.reach(turns=self.scheduler.turns(leg)))
        return True

    def _release_idle(self) -> None:
        """Let trainers that carry nobody let go of the block that they measured on."""
        busy = set(self.scheduler.devices)
        for device in self.pool.devices:
            if device not in busy:
                self.scheduler.assignment_count += 1
                self.pool.send(device, Assign(assignment=self.scheduler.assignment_count))

    def _choose_sharing(self, flotilla: Flotilla) -> bool:
        """Settle how nodes share the stream; False while that is measured, after which the policy is asked again."""
        sharing, cluster = self.sharing, self.driver.cluster
        if sharing.chosen is None and len(cluster.nodes) > 1 and not sharing.measured:
            team = self._free_team(self.pool.devices)
            if team is not None and not sharing.waiting_for:
                sharing.ask([feeder.name for feeder in team])
                self.pool.probe(team)
            return False
        self.driver.record(
            chosen := sharing.choose(cluster, flotilla, preparation_seconds=self.launching.preparation_seconds)
        )
        if self.driver.settings.loader_workers is None:
            for feeder in self.pool.feeders:
                self.pool.send(feeder, UseLoaders(count=chosen.loader_workers))
        return True

    def probed(self, worker: str, probed: Probed) -> None:
        """A feeder has measured what sharing costs."""
        self.sharing.hear(worker, probed)
        if self.sharing.measured:
            self.scheduler.changed = True


def _same_nodes(one: Iterable[Feeder], other: Iterable[Feeder]) -> bool:
    return {feeder.node for feeder in one} == {feeder.node for feeder in other}


def assignments_of(flotilla: Flotilla) -> dict[str, list[str]]:
    """The members of each device, in the order of their steps."""
    return {device: [placement.member for placement in flotilla.pack(device)] for device in flotilla.devices}
