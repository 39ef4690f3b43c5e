"""How a test run goes: fast stages first, a file at a time in each process, and an account at the end."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from support.pace import TooSlow

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch loads: services under test share these cores
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each of the processes that tests start compiles anew

TESTS = Path(__file__).parent

STAGES = ("unit", "contract", "property", "integration", "plugins", "e2e", "gpu")
"""Folders of this one, fast to slow."""

LONGEST = (
    "test_same_ids.py",
    "test_many_streams.py",
    "test_serve_command.py",
    "test_replicas.py",
    "test_gateway.py",
    "test_bf16_reference.py",
)
"""The longest files of the last folder: begun first, so that no process is alone with one at the end."""

LOCKS = pytest.StashKey[str]()
"""Where the processes of this run keep their locks."""

TRIES = 3
"""Of a test that ends with ``TooSlow``."""


def stage_of(path: Path | str) -> str:
    """The folder of ``tests`` that a test lies in."""
    parts = Path(path).parts
    return parts[parts.index("tests") + 1] if "tests" in parts else parts[0]


def pytest_configure(config: pytest.Config) -> None:
    """Count by stage for the account at the end; let Ctrl-C through to the services that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's `&` has children inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Account(), "hundredfold-account")
    if worker := getattr(config, "workerinput", None):
        config.pluginmanager.register(Quiet(Path(worker["locks"])), "hundredfold-quiet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast stages first, each by its files' names but for its longest. What needs a GPU is left out where
    there is none.
    """
    items.sort(
        key=lambda item: (
            STAGES.index(stage_of(item.path.relative_to(TESTS.parent))),
            LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST),
            item.path,
        )
    )
    for item in items:
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every second process of a run reads the folders from their end: pytest's rewriting of a test file takes
    twice what running it does, is kept in a file, and need not be done by two that go the same way.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    if isinstance(collector, pytest.Directory) and int(worker.removeprefix("gw")) % 2:
        report.result = report.result[::-1]
    return report


def has_gpu() -> bool:
    """Whether torch sees a CUDA device; asked only when a test needs one."""
    import torch

    return torch.cuda.is_available()


@pytest.hookimpl
def pytest_configure_node(node: WorkerController) -> None:
    """Tell each process where this run's locks are."""
    if LOCKS not in node.config.stash:
        locks = tempfile.TemporaryDirectory(prefix="hundredfold-tests-")
        node.config.add_cleanup(locks.cleanup)
        node.config.stash[LOCKS] = locks.name
    node.workerinput["locks"] = node.config.stash[LOCKS]


class FilesInOrder(LoadScopeScheduling):
    """Hands whole files to the processes in the order above: what a file's tests share is made once."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FilesInOrder:
    """For ``-n``; without it nothing is handed out."""
    config.option.loadscopereorder = False
    return FilesInOrder(config, log)  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Call it again, with the same fixtures, when a bound on time was passed; the account names those."""
    try:
        return (yield)
    except TooSlow as slow:
        error = slow
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for _ in range(TRIES - 1):
        pyfuncitem.user_properties.append(("slow", str(error)))
        try:
            pyfuncitem.obj(**arguments)
        except TooSlow as slow:
            error = slow
        else:
            return True
    raise error


class Quiet:
    """Keeps the run's other processes still while a test marked ``alone`` runs, and only then."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextlib.contextmanager
    def lock(self, name: str, kind: int) -> Iterator[None]:
        """A lock that ends with its process."""
        with (self.directory / name).open("w") as file:
            fcntl.flock(file, kind)
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outside of pytest-timeout's clock
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Through the door one by one, so that who waits to be alone is not overtaken for ever."""
        with contextlib.ExitStack() as held:
            kind = fcntl.LOCK_EX if item.get_closest_marker("alone") else fcntl.LOCK_SH
            with self.lock("door", fcntl.LOCK_EX):
                held.enter_context(self.lock("room", kind))
            return (yield)


class Account:
    """Tests, failures and seconds of each stage; seconds are those of all processes together."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.slow: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of each set-up, call and tear-down, wherever it ran."""
        stage = stage_of(report.fspath)
        self.seconds[stage] += report.duration
        self.tests[stage] += report.when == "call" or (report.when == "setup" and not report.passed)
        self.failed[stage] += report.failed
        if report.when == "call":
            self.slow += [
                f"{report.nodeid}: {text}" for name, text in report.user_properties if name == "slow"
            ]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the account."""
        if not self.tests:
            return
        terminalreporter.section("stages, seconds of all processes together")
        for stage in STAGES:
            if self.tests[stage]:
                failed = f"  {self.failed[stage]} FAILED" if self.failed[stage] else ""
                line = f"{stage:<12} {self.tests[stage]:>5} tests {self.seconds[stage]:>7.1f} s{failed}"
                terminalreporter.write_line(line)
        if self.slow:
            terminalreporter.section("too slow once, called again")
            for line in self.slow:
                terminalreporter.write_line(str(line))
