"""The first message of somebody who has just installed the package: a broker, a producer, a consumer."""

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pydanube


async def first_message(url: str) -> None:
    async with pydanube.connect(url) as client:
        async with client.producer("orders") as producer:
            receipt = await producer.send(b'{"total": 12}', key="berlin")
            assert receipt.durability == "fsynced", receipt
        async with client.consumer("orders", subscription="billing", type="shared", start="earliest") as consumer:
            message = await consumer.receive(timeout=10)
            assert (message.payload, message.key) == (b'{"total": 12}', "berlin"), message
            await consumer.ack(message)


with tempfile.TemporaryDirectory() as directory:
    ready = Path(directory) / "ready"
    danube = str(Path(sys.executable).parent / "danube")
    flags = ["--data-dir", str(Path(directory) / "data"), "--listen", "127.0.0.1:0", "--ready-file", str(ready)]
    with subprocess.Popen([danube, "standalone", *flags], stderr=subprocess.PIPE) as broker:
        while not ready.exists():
            if broker.poll() is not None:
                sys.exit("the broker did not start: " + broker.communicate()[1].decode())
        asyncio.run(first_message("danube://" + json.loads(ready.read_text())["listen"]))
        broker.terminate()
        broker.communicate(timeout=30)
