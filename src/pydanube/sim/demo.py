"""A story for a newcomer: three copies, a broker killed, a power cut, a wiped disk; nothing acknowledged is lost."""

from __future__ import annotations

from collections.abc import Callable

from pydanube.sim.plan import Fault, Plan
from pydanube.sim.run import run_plan
from pydanube.stream.record import Copies

STORY = Plan(
    seed=7,
    nodes=3,
    brokers=2,
    embedded=False,
    copies=Copies(3, 3, 2),
    file_bytes=24 * 4096,
    ledger_bytes=20_000,
    messages=1500,
    seconds=12.0,
    faults=(
        Fault(1.0, "kill", 3, 0.5, 0.0),
        Fault(3.0, "power", 1, 1.0, 0.0),
        Fault(5.0, "rival", 7, 0.0, 0.0),
        Fault(7.0, "power_all", 0, 0.5, 0.0),
        Fault(9.0, "wipe", 2, 0.5, 0.0),
    ),
)
DESCRIPTIONS = {
    "kill": "kill -9 of the broker that owns the topic",
    "power": "a power cut on one storage node: everything not synced is gone",
    "rival": "a second broker takes the topic while the first still writes",
    "power_all": "a power cut on every machine at once",
    "wipe": "a storage node loses its disk for good and comes back empty",
}


def demo(write: Callable[[str], None]) -> int:
    """Runs the story and describes it, line by line. Returns 0 if every promise was kept."""
    write("Three storage nodes, two brokers, one topic with three copies of each message, two of them before the ack.")
    write("Everything below runs the product's own code on simulated disks, network and clocks, in virtual time.\n")
    outcome = run_plan(STORY, record=True)
    acked = 0
    for line in outcome.lines:
        moment, kind, rest = line.split(" ", 2)
        if kind == "acked":
            acked += 1
        elif kind == "fault":
            fault = DESCRIPTIONS[rest.split("'")[1]]
            write(f"{float(moment):6.2f} s  {acked:4d} batches acknowledged   FAULT  {fault}")
        elif kind == "took":
            broker, _, epoch = (part.strip(" ()',") for part in rest.split(","))
            write(f"{float(moment):6.2f} s  {acked:4d} batches acknowledged   broker {broker} owns it, epoch {epoch}")
        elif kind == "healed":
            write(f"{float(moment):6.2f} s  {acked:4d} batches acknowledged   all faults end; everything is read back")
    write(f"\n{outcome.events:,} simulated events; {outcome.acked:,} messages were acknowledged.")
    if outcome.violations:
        for violation in outcome.violations:
            write(f"BROKEN  {violation}")
        return 1
    write("Every one of them was found in the end: the same payload at the same offset, once. No promise was broken.")
    write("For more seeds, run `make sim SEEDS=300`.")
    return 0
