"""The public testing kit, for programs that use Danube and for new parts of it.

Contracts state what every implementation of a port must do, as test methods to inherit; `ledgers` has helpers for
them. The simulated ports run Danube's own code on virtual time, with disks and networks that fail on demand. `run_seed`
runs a whole simulated world and returns the promises that it broke. Only `fixtures` needs pytest. See docs/testing.md.
"""

from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import SimBudgetExceeded, SimLoop, SimStalled
from pydanube.sim.machine.network import Link, SimNetwork
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.sim.plan import plan_for
from pydanube.sim.run import Outcome, run_plan, run_seed
from pydanube.sim.world.catalog import SimCatalog
from pydanube.testing.clock import VirtualClock
from pydanube.testing.faults import SlowDialer
from pydanube.testing.storage_contract import DurableNodeContract, StorageNodeContract

__all__ = [
    "DurableNodeContract",
    "Link",
    "Outcome",
    "SimBudgetExceeded",
    "SimCatalog",
    "SimClock",
    "SimDisk",
    "SimLoop",
    "SimNetwork",
    "SimOffload",
    "SimRandomness",
    "SimStalled",
    "SlowDialer",
    "StorageNodeContract",
    "VirtualClock",
    "plan_for",
    "run_plan",
    "run_seed",
]
