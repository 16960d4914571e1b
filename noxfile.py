"""What is checked before a change lands: ``nox`` for all of it, ``nox --list`` names each, ``nox -s NAME`` runs one."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from textwrap import indent

import nox

nox.needs_version = ">=2026.10.20"  # parallel
nox.options.parallel = os.cpu_count()
nox.options.allow_parallel = True
nox.options.reuse_venv = "yes"
nox.options.error_on_external_run = True
nox.options.error_on_missing_interpreters = False  # a contributor need not have them all

PROJECT = nox.project.load_toml("pyproject.toml")
PYTHONS = nox.project.python_versions(PROJECT)
CLIENTS = ["httpx", "aiohttp", "requests"]
EVERYTHING = ".[hishel,aiohttp-client-cache]"
VLLM_PYTHON = "3.11"  # the one that the small build of what vLLM needs exists for


def install(session: nox.Session, package: str, *groups: str) -> None:
    """Install the package as a user would, and dependency groups of pyproject.toml."""
    session.install(package, *nox.project.dependency_groups(PROJECT, *groups))


def run_in(session: nox.Session, environment: str, *command: str) -> None:
    """Run Python in another session's environment: making one for each would take most of the time."""
    home = Path(session.virtualenv.location).with_name(environment.replace(".", "-"))
    session.run(str(home / "bin" / "python"), *command, *session.posargs, external=True)


def examples() -> str:
    """The Python of the README and the docs as a program: a page's examples, which go on from one another, in one."""
    program = ""
    for page in (Path("README.md"), *Path("docs").glob("*.md")):
        for example in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            begin = f"async def {page.stem}() -> None:\n"
            program += ("" if begin in program else begin) + indent(example, "    ")
    return program


@nox.session
def lint(session: nox.Session) -> None:
    """Rules, formatting, and the import contracts of the house."""
    install(session, ".", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over everything, and over what the README and the docs show."""
    install(session, EVERYTHING, "types")
    session.run("mypy")
    program = Path(session.create_tmp()) / "examples.py"
    program.write_text(examples(), "utf-8")
    session.run("mypy", "--allow-redefinition", str(program))


@nox.session(python=PYTHONS, default=False)
def environment(session: nox.Session) -> None:
    """What the tests of one Python run in; made once and shared by its sessions."""
    install(session, EVERYTHING, "tests")


@nox.session(python=PYTHONS, requires=["environment-{python}"])
def units(session: nox.Session) -> None:
    """All tests but those of the clients' matrix and of vLLM; hishel's adapters once, in the oldest Python."""
    choice = ["-m", "not slow", "--ignore=tests/matrix", "--ignore=tests/vllm"]
    if session.python != PYTHONS[0]:
        choice.append("--ignore=tests/storage_hishel")
    run_in(session, f"environment-{session.python}", "-m", "pytest", *choice)


@nox.session(python=PYTHONS, requires=["environment-{python}"])
@nox.parametrize("client", CLIENTS)
def tests(session: nox.Session, client: str) -> None:
    """The matrix: tests written once, run over one client's transports."""
    choice = ("-m", "not slow", "tests/matrix", "--client", client)
    run_in(session, f"environment-{session.python}", "-m", "pytest", *choice)


@nox.session(python=PYTHONS[0], default=False)
def oldest(session: nox.Session) -> None:
    """The matrix, the commands and aiohttp's tests with the oldest dependencies that pyproject.toml allows."""
    session.install("uv")  # pip knows the newest only
    session.run("uv", "pip", "install", "--resolution=lowest-direct", EVERYTHING)
    session.install(*nox.project.dependency_groups(PROJECT, "tests"))
    session.run("python", "-m", "pytest", "-m", "not slow", "tests/aiohttp", "tests/cli")
    for client in CLIENTS:
        session.run("python", "-m", "pytest", "-m", "not slow", "tests/matrix", "--client", client)


@nox.session(name="environment-vllm", python=VLLM_PYTHON, default=False)
def environment_vllm(session: nox.Session) -> None:
    """The real vLLM as far as it runs without a GPU: 1.6 GB and some minutes, made once."""
    session.run("python", "tests/vllm/environment.py", session.virtualenv.location)
    install(session, EVERYTHING, "tests", "bench")


@nox.session(python=VLLM_PYTHON, default=False, requires=["environment-vllm"])
def vllm(session: nox.Session) -> None:
    """End to end: the real vLLM fetches through the cache."""
    run_in(session, "environment-vllm", "-m", "pytest", "tests/vllm")


@nox.session(python=VLLM_PYTHON, default=False, requires=["environment-vllm"], allow_parallel=False)
def bench(session: nox.Session) -> None:
    """Measure this cache and its peers, vLLM's own among them: ``-- --quick`` for two minutes of it."""
    run_in(session, "environment-vllm", "-m", "bench")


@nox.session(default=False, allow_parallel=False)
@nox.parametrize("client", CLIENTS)
def conformance(session: nox.Session, client: str) -> None:
    """The public test suite for HTTP caches (from npm), and our own list, as a shared and as a private cache."""
    install(session, EVERYTHING, "tests")
    for private in ((), ("--private",)):
        session.run("python", "-m", "tests.conformance", "--client", client, *private, *session.posargs)


@nox.session(default=False, allow_parallel=False)
def stress(session: nox.Session) -> None:
    """Many processes on one small folder, killed at random, for a minute: ``-- --seconds 300 --seed 7``."""
    install(session, EVERYTHING, "tests")
    session.run("python", "-m", "tests.stress", *session.posargs)


@nox.session(default=False, allow_parallel=False)
def fuzz(session: nox.Session) -> None:
    """Records, archives and whole folders come to harm, some thousand times: ``-- --hypothesis-seed=7``."""
    install(session, EVERYTHING, "tests")
    fuzzed = ("tests/storage/test_records.py", "tests/storage/test_fuzz.py")
    session.run("python", "-m", "pytest", "--hypothesis-profile=fuzz", *fuzzed, *session.posargs)


@nox.session(default=False, allow_parallel=False)
def soak(session: nox.Session) -> None:
    """All clients before an origin that misbehaves, for a minute: ``-- --seconds 300 --seed 7``."""
    install(session, EVERYTHING, "tests")
    session.run("python", "-m", "tests.soak", *session.posargs)


@nox.session(default=False, allow_parallel=False)
def mutation(session: nox.Session) -> None:
    """Break each rule of rfc9111/ in turn, and see whether a test notices: some thousand times, about 15 minutes."""
    install(session, EVERYTHING, "tests")
    session.install("mutmut>=3.8")
    copy = Path(session.create_tmp()) / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(".", copy, ignore=shutil.ignore_patterns(".*", "site"))
    remembering = re.compile(r"(?m)^@(?:memo|lru_cache).*\n")  # mutmut passes decorated functions by
    for module in (copy / "vllm_http_cache" / "rfc9111").glob("*.py"):
        module.write_text(remembering.sub("", module.read_text()))
    session.chdir(copy)
    session.run("mutmut", "run", "--max-children", str(os.cpu_count()), *session.posargs)
    session.run("mutmut", "results")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into site/; warnings are errors. ``nox -s docs -- serve`` shows it while you write."""
    install(session, EVERYTHING, "docs")
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]), env={"NO_MKDOCS_2_WARNING": "1"})


@nox.session
def demo(session: nox.Session) -> None:
    """What the README promises a newcomer, in an environment that has nothing but the package."""
    session.install(".")
    session.run("vllm-http-cache", "demo")
