"""The testing kit after `pip install pydanube pytest`, with nothing else."""

import pydanube.sync
from pydanube.testing import run_seed

pytest_plugins = ["pydanube.testing.fixtures"]


def test_an_order_outlives_a_crash(danube_broker):
    with pydanube.sync.connect(danube_broker.url) as client:
        with client.producer("orders") as producer:
            assert producer.send(b"two pizzas").result().durability == "fsynced"
        danube_broker.crash()
        with client.consumer("orders", subscription="kitchen", start="earliest") as kitchen:
            assert kitchen.receive(timeout=10).payload == b"two pizzas"


def test_a_simulated_world_keeps_its_promises():
    assert run_seed(1, "power").violations == ()
