"""What is checked before a change lands: ``nox`` for all of it, ``nox --list`` for the names, ``nox -s NAME`` for one."""

from __future__ import annotations

from pathlib import Path

import nox

nox.needs_version = ">=2025.5.1"
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


def pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest in the Python's shared environment: installing it for each client would take most of the time."""
    shared = Path(session.virtualenv.location).with_name(f"environment-{session.python}".replace(".", "-"))
    python = str(shared / "bin" / "python")
    session.run(python, "-m", "pytest", "-m", "not slow", *arguments, *session.posargs, external=True)


@nox.session
def lint(session: nox.Session) -> None:
    """Rules, formatting, and the import contracts of the house."""
    install(session, ".", "lint")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports", "--no-cache")


@nox.session
def types(session: nox.Session) -> None:
    """mypy, strict, over everything."""
    install(session, EVERYTHING, "types")
    session.run("mypy")


@nox.session(python=PYTHONS, default=False)
def environment(session: nox.Session) -> None:
    """What the tests of one Python run in; made once and shared by its sessions."""
    install(session, EVERYTHING, "tests")


@nox.session(python=PYTHONS, requires=["environment-{python}"])
def units(session: nox.Session) -> None:
    """All tests but those of the clients' matrix and of vLLM."""
    pytest(session, "--ignore=tests/matrix", "--ignore=tests/vllm")


@nox.session(python=PYTHONS, requires=["environment-{python}"])
@nox.parametrize("client", CLIENTS)
def tests(session: nox.Session, client: str) -> None:
    """The matrix: tests written once, run over one client's transports."""
    pytest(session, "tests/matrix", "--client", client)


@nox.session(python=VLLM_PYTHON, default=False)
def vllm(session: nox.Session) -> None:
    """End to end, in the real vLLM (its environment: 1.6 GB, some minutes, made once)."""
    session.run("python", "tests/vllm/environment.py", session.virtualenv.location)
    install(session, EVERYTHING, "tests")
    session.run("python", "-m", "pytest", "tests/vllm", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site into site/; warnings are errors. ``nox -s docs -- serve`` shows it while you write."""
    install(session, EVERYTHING, "docs")
    session.run("mkdocs", *(session.posargs or ["build", "--strict"]))


@nox.session
def demo(session: nox.Session) -> None:
    """What the README promises a newcomer, in an environment that has nothing but the package."""
    session.install(".")
    session.run("vllm-http-cache", "demo")
