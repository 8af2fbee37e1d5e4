"""Files of Python beside a pipeline: what is loaded is what is there, and of the pipeline that asks."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark import cloudpickle

from pydanube.pipeline.transforms import StepFailed, load


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
