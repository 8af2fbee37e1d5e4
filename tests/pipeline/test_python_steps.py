"""Files of Python beside a pipeline: what is loaded is what is there, and of the pipeline that asks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from pydanube.pipeline.query.transforms import StepFailed, load


def written(folder: Path, limit: int, step: str = "import rules\ndef clean(frame): return rules.LIMIT\n") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "rules.py").write_text(f"LIMIT = {limit}\n")
    (folder / "clean.py").write_text(step)
    return str(folder / "clean.py")


def test_a_module_beside_a_step_is_loaded_again_when_it_has_changed(tmp_path: Path) -> None:
    module = load(written(tmp_path / "a", 1))
    assert module.clean(None) == 1
    assert load(written(tmp_path / "a", 1)) is module, "nothing has changed"
    assert load(written(tmp_path / "a", 2)).clean(None) == 2, "written within the same second"


def test_two_pipelines_have_modules_of_one_name_each_its_own(tmp_path: Path) -> None:
    first, second = load(written(tmp_path / "a", 1)), load(written(tmp_path / "b", 99))
    assert (first.clean(None), second.clean(None)) == (1, 99)
    sent = [cloudpickle.loads(cloudpickle.dumps(each.clean)) for each in (first, second)]
    assert [each(None) for each in sent] == [1, 99], "as workers get them"


def test_a_module_that_fails_does_not_stay(tmp_path: Path) -> None:
    with pytest.raises(StepFailed, match="ZeroDivisionError"):
        load(written(tmp_path / "a", 1, "import rules\n1 / 0\n"))
    assert load(written(tmp_path / "b", 2)).clean(None) == 2


def test_what_is_installed_below_the_folder_of_a_step_is_loaded_once(tmp_path: Path) -> None:
    """Many extensions cannot be loaded twice in a process."""
    installed = tmp_path / ".venv" / "lib" / "site-packages"
    (installed / "native").mkdir(parents=True)
    (installed / "native" / "__init__.py").write_text(
        "import sys\nassert not hasattr(sys, 'native'), 'twice'\nsys.native = True\nLIMIT = 5\n"
    )
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.py").write_text("LIMIT = 10\n")
    step = "import native, rules, sub.more\ndef clean(frame): return native.LIMIT + sub.more.LIMIT + rules.LIMIT\n"
    file = written(tmp_path, 1, step)
    program = f"""
from pathlib import Path
from pydanube.pipeline.query.transforms import load
assert load({file!r}).clean(None) == 16
Path({str(tmp_path / "rules.py")!r}).write_text("LIMIT = 2")
Path({str(tmp_path / "sub" / "more.py")!r}).write_text("LIMIT = 20")
assert load({file!r}).clean(None) == 27
"""
    path = os.pathsep.join([str(installed), str(tmp_path / "sub"), *filter(None, sys.path)])
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "PYTHONPATH": path})
