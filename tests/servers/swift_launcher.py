"""OpenStack Swift on one machine, with the S3 face that checks signatures. Run by the Python of `.servers/`.

    python swift_launcher.py FOLDER PROXY_PORT ACCOUNT_PORT CONTAINER_PORT OBJECT_PORT

One replica of everything, below FOLDER, which needs a filesystem with extended attributes.
"""

from __future__ import annotations

import getpass
import os
import sys
from pathlib import Path

from tied import tie

PROXY = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
log_level = ERROR

[pipeline:main]
pipeline = catch_errors listing_formats bulk s3api tempauth copy slo dlo versioned_writes symlink proxy-server

[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true

[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin

[filter:s3api]
use = egg:swift#s3api
allow_no_owner = true
check_bucket_owner = true
s3_acl = true
location = us-east-1
""" + "".join(
    f"\n[filter:{name}]\nuse = egg:swift#{name}\n"
    for name in ("catch_errors", "listing_formats", "bulk", "copy", "slo", "dlo", "versioned_writes", "symlink")
)

BACKEND = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
log_level = ERROR

[pipeline:main]
pipeline = {kind}-server

[app:{kind}-server]
use = egg:swift#{kind}
"""


def main(folder: Path, ports: dict[str, int]) -> None:
    (folder / "devices" / "d1").mkdir(parents=True, exist_ok=True)
    (folder / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = danube\n")

    from swift.common import utils

    utils.SWIFT_CONF_FILE = str(folder / "swift.conf")
    from swift.common.ring import RingBuilder
    from swift.common.storage_policy import reload_storage_policies
    from swift.common.wsgi import run_wsgi

    utils.validate_configuration()
    reload_storage_policies()
    for kind in ("account", "container", "object"):
        builder = RingBuilder(2, 1, 0)
        device = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": ports[kind], "device": "d1", "weight": 1.0}
        builder.add_dev({**device, "replication_ip": "127.0.0.1", "replication_port": ports[kind], "meta": ""})
        builder.rebalance()
        builder.get_ring().save(str(folder / f"{kind}.ring.gz"))
    for kind, port in ports.items():
        template = PROXY if kind == "proxy" else BACKEND
        text = template.format(kind=kind, port=port, user=getpass.getuser(), folder=folder)
        (folder / f"{kind}.conf").write_text(text)
        if kind != "proxy" and os.fork() == 0:
            tie()
            os._exit(run_wsgi(str(folder / f"{kind}.conf"), f"{kind}-server") or 0)
    sys.exit(run_wsgi(str(folder / "proxy.conf"), "proxy-server"))


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[2:]]
    main(
        Path(sys.argv[1]),
        dict(zip(("account", "container", "object", "proxy"), [*numbers[1:], numbers[0]], strict=True)),
    )
