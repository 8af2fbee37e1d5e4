"""Injects the faults of a plan into a world, with one small method for each kind, and heals everything in the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.sim.machine.network import Link
from pydanube.sim.plan import Fault
from pydanube.sim.world.world import Machine, World

LATE = Link(delay_max=0.01, loss=0.02, duplication=0.1, late=0.1, late_max=8.0)
FAR_SECONDS = 2 * 365 * 86_400  # jumps of a clock by up to a year


@dataclass(slots=True)
class FaultInjector:
    """Injects faults at their times. `heal` ends all of them."""

    world: World
    victim: Machine | None = None  # the only storage node that may lose or damage data in this run
    done: list[str] = field(default_factory=list)  # kinds of the faults injected so far

    def schedule(self) -> None:
        loop = self.world.loop
        for fault in self.world.plan.faults:
            loop.call_at(fault.at, self.inject, fault, context=loop.world)

    def inject(self, fault: Fault) -> None:
        if self.world.healed:
            return
        self.world.loop.trace("fault", fault.kind, fault.target, fault.seconds)
        self.done.append(fault.kind)
        getattr(self, f"_{fault.kind}")(fault)

    def later(self, seconds: float, action: object, *arguments: object) -> None:
        loop = self.world.loop
        loop.call_later(seconds, action, *arguments, context=loop.world)  # type: ignore[arg-type]

    # -- processes and power -----------------------------------------------------------------------------------------

    def _any(self, fault: Fault) -> Machine:
        machines = self.world.machines
        return machines[fault.target % len(machines)]

    def _storage(self, fault: Fault) -> Machine:
        return self.world.storage[fault.target % len(self.world.storage)]

    def _kill(self, fault: Fault) -> None:
        machine = self._any(fault)
        if not machine.down:
            self.world.kill(machine)
            self.later(fault.seconds, self.world.restart, machine)

    def _power(self, fault: Fault) -> None:
        machine = self._storage(fault)
        if not machine.down:
            self.world.power_cut(machine)
            self.later(fault.seconds, self.world.restart, machine)

    def _power_all(self, fault: Fault) -> None:
        for machine in self.world.machines:
            if not machine.down:
                self.world.power_cut(machine)
                self.later(fault.seconds, self.world.restart, machine)

    def _pause(self, fault: Fault) -> None:
        process = self._any(fault).process
        self.world.loop.pause(process)
        self.later(fault.seconds * 3, self.world.loop.resume, process)

    # -- disks -------------------------------------------------------------------------------------------------------

    def _write_error(self, fault: Fault) -> None:
        self._fail(fault, "write")

    def _sync_error(self, fault: Fault) -> None:
        self._fail(fault, "sync")

    def _name_error(self, fault: Fault) -> None:
        kinds = ("rename", "create", "remove", "sync_directory")
        self._fail(fault, kinds[int(fault.amount * len(kinds))])

    def _fail(self, fault: Fault, kind: str) -> None:
        self.world.history.sync_failed = True
        disks = self._storage(fault).disks
        disk = disks[fault.target // 7 % len(disks)]
        disk.fail_next(kind, count=1 + int(fault.amount * 4), after=fault.target % 5)

    def _full(self, fault: Fault) -> None:
        self.world.history.sync_failed = True
        for disk in self._storage(fault).disks:
            used = sum(size for size, _ in disk.image().values())
            disk.capacity = used + int(fault.amount * self.world.plan.file_bytes)
            self.later(fault.seconds * 2, setattr, disk, "capacity", None)

    def _slow(self, fault: Fault) -> None:
        now = self.world.loop.time()
        for disk in self._storage(fault).disks:
            disk.slow(fault.amount * 3, until=now + fault.seconds * 3, only="sync")

    def _victim(self, fault: Fault) -> Machine:
        """Always the same storage node, so that everything acknowledged has another copy, and there is a quorum."""
        if self.victim is None:
            self.victim = self._storage(fault)
        return self.victim

    def _wipe(self, fault: Fault) -> None:
        machine = self._victim(fault)
        if not machine.down:
            self.world.wipe(machine)
            self.later(fault.seconds, self.world.restart, machine)

    def _damage(self, fault: Fault) -> None:
        machine = self._victim(fault)
        for disk in [] if machine.down else machine.disks:
            names = [name for name in disk.names() if name.endswith(".log")]
            if names:
                name = names[fault.target % len(names)]
                size = max(len(disk.image()[name][1]), 1)
                for step in range(3):
                    disk.flip_bit(name, (int(fault.amount * size) + step * 4099) % size, fault.target % 8)

    # -- network, clocks, owners -------------------------------------------------------------------------------------

    def _isolate(self, fault: Fault) -> None:
        name = self._any(fault).name
        self.world.network.isolate(name)
        self.later(fault.seconds * 2, self.world.network.heal, name)

    def _silent(self, fault: Fault) -> None:
        self.world.network.isolate(self._victim(fault).name)

    def _deaf(self, fault: Fault) -> None:
        self.world.deaf[self._storage(fault).name] = fault.target

    def _one_way(self, fault: Fault) -> None:
        machines = self.world.machines
        a, b = self._any(fault).name, machines[fault.target // 7 % len(machines)].name
        if a != b:
            self.world.network.cut(a, b, one_way=True)
            self.later(fault.seconds * 2, self.world.network.heal, a, b)

    def _lossy(self, fault: Fault) -> None:
        self._link(Link(delay_max=0.05, loss=0.05 + 0.3 * fault.amount, duplication=0.1), fault)

    def _late(self, fault: Fault) -> None:
        self._link(LATE, fault)

    def _link(self, link: Link, fault: Fault) -> None:
        self.world.network.link = link
        self.later(fault.seconds * 2, setattr, self.world.network, "link", Link())

    def _clock(self, fault: Fault) -> None:
        clock = self._any(fault).clock
        if fault.target % 3 == 0:
            clock.jump((fault.amount - 0.5) * (7200 if abs(fault.amount - 0.5) < 0.3 else FAR_SECONDS))
        elif fault.target % 3 == 1:
            clock.freeze()
            self.later(fault.seconds, clock.thaw)
        else:
            clock.set_drift((fault.amount - 0.5) * 0.2)

    def _rival(self, fault: Fault) -> None:
        names = sorted(self.world.owners)
        stream = names[fault.target % len(names)]
        brokers = self.world.brokers
        self.world.owners[stream] = brokers[fault.target // 7 % len(brokers)].name

    def _catalogue(self, fault: Fault) -> None:
        self.world.set_unreliable(0.2 * fault.amount)
        self.later(fault.seconds * 2, self.world.set_unreliable, 0.0)

    # -- object storage ------------------------------------------------------------------------------------------------

    def _objects_fail(self, fault: Fault) -> None:
        self._objects(fault, failing=0.2 + 0.8 * fault.amount)

    def _objects_unsure(self, fault: Fault) -> None:
        self._objects(fault, unsure=0.2 + 0.8 * fault.amount)

    def _objects_slow(self, fault: Fault) -> None:
        self._objects(fault, slowness=3 * fault.amount)

    def _objects(self, fault: Fault, **trouble: float) -> None:
        for name, amount in trouble.items():
            setattr(self.world.objects, name, amount)
            self.later(fault.seconds * 2, setattr, self.world.objects, name, 0.0)

    def _objects_hang(self, fault: Fault) -> None:
        self._objects(fault, hanging=0.1 + 0.5 * fault.amount)

    def _objects_stale(self, fault: Fault) -> None:
        self.world.objects.list_stale()

    def _objects_lost(self, fault: Fault) -> None:
        self.world.objects.lose(fault.target)

    def _objects_damaged(self, fault: Fault) -> None:
        self.world.objects.damage(fault.target, fault.amount)

    # -- healing -----------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Ends all faults and restarts what is down."""
        world = self.world
        world.healed = True
        world.network.link = Link()
        world.set_unreliable(0.0)
        world.network.heal()
        world.objects.heal()
        world.deaf.clear()
        for machine in world.machines:
            machine.clock.correct()
            world.loop.resume(machine.process)
            for disk in machine.disks:
                disk.cure()
                disk.capacity = None
            world.restart(machine)
        world.loop.trace("healed")
