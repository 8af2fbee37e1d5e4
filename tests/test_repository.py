"""The repository as a whole: it names no machine and no package index, and its locks name only packages."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Written so that this file does not find itself.
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root)(?![\w-])|(?<![\w.~-])/home[/]")
REGISTRY = re.compile(
    r"py[p]i\.org|python[h]osted|registry\.npm[j]s|--(?:extra-)?index[-]url|--find[-]links", re.IGNORECASE
)
SKIPPED_FOLDERS = {
    ".git",
    ".venv",
    ".servers",
    ".hypothesis",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    "__pycache__",
}


def repository_files() -> list[Path]:
    """What is or could be committed; without git, every file outside the caches."""
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pass
        else:
            names = sorted(set(done.stdout.decode().split("\0")) - {""})
            return [ROOT / name for name in names if (ROOT / name).is_file()]
    found: list[Path] = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name not in SKIPPED_FOLDERS)
        found.extend(Path(folder) / name for name in sorted(names))
    return found


def of_one_machine(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for pattern in (MACHINE_PATH, REGISTRY):
            if match := pattern.search(line):
                yield f"{number}: {match.group()}"


def test_the_repository_names_no_machine_and_no_package_index() -> None:
    complaints: list[str] = []
    for path in repository_files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode("utf-8", errors="replace")
        complaints.extend(f"{path.relative_to(ROOT)}:{complaint}" for complaint in of_one_machine(text))
    assert complaints == []


def test_locks_name_packages_and_hashes_only() -> None:
    for lock in ROOT.glob("requirements*.lock"):
        text = lock.read_text(encoding="utf-8")
        assert "://" not in text
        assert "--hash=sha256:" in text


def test_the_machine_rule_finds_planted_names() -> None:
    planted = ["cd /" + "work/main", "/" + "root/.cache", "open('/" + "home/me')", "https://py" + "pi.org/simple"]
    assert [len(list(of_one_machine(line))) for line in planted] == [1, 1, 1, 1]
    assert list(of_one_machine("src/workers /default/orders network/root the work at hand, /workflows")) == []
