"""Environments of a stranger: fresh ones that borrow this one's libraries, and packages put into them."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from support.distributions import put_distribution

CLI = "import sys; from hundredfold.cli.main import run; sys.exit(run())"


@dataclass(frozen=True, slots=True)
class PluginEnvironment:
    """A virtual environment whose own packages come on top of those that these tests run with."""

    directory: Path

    @classmethod
    def make(cls, directory: Path) -> PluginEnvironment:
        """Create it. torch is not installed again: its site directories are those of this interpreter too."""
        venv.create(directory, symlinks=True, with_pip=False)
        made = cls(directory)
        borrowed = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
        (made.site_packages / "borrowed.pth").write_text(borrowed)
        return made

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.directory / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """Where its own packages are."""
        return next((self.directory / "lib").glob("python3*/site-packages"))

    def install(self, package: Path) -> None:
        """Install a package from its source as pip does, without a network. Raises on failure."""
        flags = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
        pip = [sys.executable, "-m", "pip", "--python", str(self.python)]
        done = subprocess.run([*pip, "install", *flags, str(package)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pip could not install {package}:\n{done.stdout}\n{done.stderr}")

    def put(self, distribution: str, group: str, name: str, source: str, *, version: str = "1.0") -> None:
        """Put a distribution of one module and one entry point there."""
        put_distribution(self.site_packages, distribution, group, name, source, version=version)

    def run(
        self, *arguments: str | Path, cwd: Path | None = None, timeout_s: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Run its interpreter; the caller looks at the exit code."""
        command = [str(self.python), *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "200"}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=environment
        )

    def hundredfold(self, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `hundredfold` there."""
        return self.run("-c", CLI, *arguments, timeout_s=timeout_s)
