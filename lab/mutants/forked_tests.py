"""Runs chosen tests of one checkout, each time in a fork of a process that has imported all of them already.

A script, started in the checkout's root: it reads one JSON object per line, and answers each with one. The first names
the files with the tests of all later requests. It imports nothing of the laboratory, which other checkouts lack.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import psutil
import pytest
from hypothesis import settings

OPTIONS = ["-q", "-p", "no:cacheprovider", "-m", "not slow and not mutations and not long"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins of this process, which have no assertions
FEW = 5  # examples of one property while lines are recorded; a mutant meets all of them
MEMORY = 6 << 30  # bytes that a mutant may take
PARENTS_END, SUBREAPER = 1, 36  # of prctl: a child ends with its parent; servers that a test leaves are ours to end


class TestNotes:
    """Plugin of pytest: tests that passed and failed, their costs, and the name of the one that runs for the tracer."""

    def __init__(self, tracer: coverage.Coverage | None) -> None:
        self.tracer = tracer
        self.costs: dict[str, float] = {}  # processor seconds
        self.passed: list[str] = []
        self.failed: list[str] = []
        self.reason = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure one test, its fixtures included."""
        if self.tracer is not None:
            self.tracer.switch_context(item.nodeid)
        start = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self.costs[item.nodeid] = round(sum(os.times()[:4]) - start, 3)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note how a test ended."""
        if report.failed:
            self.failed.append(report.nodeid)
            self.reason = self.reason or str(report.longrepr)[-300:]
        elif report.when == "call" and report.passed:
            self.passed.append(report.nodeid)


def functions_of(code: CodeType) -> Iterator[CodeType]:
    """Code of the functions and methods of a module, in their order; not of those inside functions."""
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            if inner.co_flags & 2:  # CO_NEWLOCALS: a function; a class's body has it not
                yield inner
            else:
                yield from functions_of(inner)


def by_name(codes: Iterator[CodeType] | list[CodeType]) -> dict[str, list[CodeType]]:
    """Group code by its qualified name, in the order of lines."""
    named: dict[str, list[CodeType]] = {}
    for code in sorted(codes, key=lambda each: each.co_firstlineno):
        named.setdefault(code.co_qualname, []).append(code)
    return named


def exchange(path: Path, name: str) -> None:
    """Give the functions called `name` that were imported from a file the code that the file has now.

    Raises:
        LookupError: They are not the functions of the file.
    """
    alive: dict[CodeType, list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == str(path):
            alive.setdefault(each.__code__, []).append(each)
    if not alive:
        return  # nothing has imported it yet: whoever does so gets the new code
    new = by_name(functions_of(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True)))[name]
    old = by_name(list(alive)).get(name, [])
    if not 0 < len(old) <= len(new):
        raise LookupError(f"expected {len(new)} functions {name} of {path} in memory, found {len(old)}")
    for before, after in zip(old, new[-len(old) :], strict=True):  # the last is run; overloads may be gone
        for function in alive[before]:
            function.__code__ = after


def tests(request: dict[str, Any]) -> dict[str, Any]:
    """Run the tests of one request in this process."""
    tracer = None
    arguments = [*OPTIONS, "--tb=short", "--override-ini=addopts="]  # jaxtyping, installed at the collection, stays
    if "sources" in request:
        tracer = coverage.Coverage(data_file=None, config_file=False, include=request["sources"])
        settings.register_profile("few", settings.default, deadline=None, derandomize=True, max_examples=FEW)
        arguments.append("--hypothesis-profile=few")
        tracer.start()
    else:
        arguments.append("-x")
    if "mutant" in request:
        exchange(Path(request["mutant"]), request["function"])
    folder = tempfile.mkdtemp(prefix="mutant-", dir=request["temporary"])
    notes = TestNotes(tracer)
    status = pytest.main([*arguments, f"--basetemp={folder}/tests", *request["tests"]], plugins=[notes])
    shutil.rmtree(folder, ignore_errors=True)
    answer = {"status": int(status), "failed": notes.failed, "reason": notes.reason, "costs": notes.costs}
    if tracer is not None:
        tracer.stop()
        answer["passed"], answer["lines"] = notes.passed, lines(tracer.get_data(), notes.passed)
    return answer


def lines(data: coverage.CoverageData, passed: list[str]) -> dict[str, dict[str, list[int]]]:
    """Lines that each test reached, by file, relative to the checkout."""
    reached: dict[str, dict[str, list[int]]] = {test: {} for test in passed}
    for name in data.measured_files():
        for line, found in data.contexts_by_lineno(name).items():
            for test in found:
                if test in reached:
                    reached[test].setdefault(os.path.relpath(name), []).append(line)
    return reached


def forked(request: dict[str, Any]) -> dict[str, Any]:
    """Run one request in a child, which has a limit of processor seconds and one of patience."""
    with tempfile.NamedTemporaryFile("r", dir=request["temporary"]) as answer:
        child = os.fork()
        if not child:
            try:
                os.setsid()
                ctypes.CDLL(None).prctl(PARENTS_END, signal.SIGKILL)
                limit = int(request["seconds"])
                resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
                resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
                Path(answer.name).write_text(json.dumps(tests(request)), encoding="utf-8")
            except BaseException as error:  # noqa: BLE001 - the parent reports it
                Path(answer.name).write_text(json.dumps({"error": repr(error)}), encoding="utf-8")
            finally:
                os._exit(0)
        patience = time.monotonic() + request["patience"]
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > patience:
                os.kill(child, signal.SIGKILL)
            time.sleep(0.02)
        end_others()
        return json.loads(answer.read() or '{"status": -1}')  # -1: it reached a limit


def end_others() -> None:
    """End the processes that tests did not."""
    while others := psutil.Process().children(recursive=True):
        for other in others:
            with contextlib.suppress(psutil.Error):
                other.kill()
                other.wait(10)


def serve() -> None:
    """Answer requests until there are no more."""
    answers, requests = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # the output of tests
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    sys.dont_write_bytecode = True  # of mutants
    files = json.loads(requests.readline())
    status = pytest.main(["--collect-only", *OPTIONS, *files])
    print(json.dumps({"status": int(status)}), file=answers, flush=True)
    for line in requests:
        print(json.dumps(forked(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    serve()
