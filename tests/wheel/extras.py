"""What each extra is for can be imported with nothing but that extra."""

import sys
from importlib import import_module

MODULES = {
    "arrow": ["pyarrow.parquet", "pydanube.client.messages"],
    "objects": ["pydanube.tier.process", "pydanube.testing"],
    "delta": ["deltalake", "pydanube.tier.process"],
    "spark": ["pydanube.spark"],
    "pipeline": ["pydanube.pipeline"],
}

for module in MODULES[sys.argv[1]]:
    import_module(module)
