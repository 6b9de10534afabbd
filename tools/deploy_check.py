"""Run the steps of docs/deploy in a fresh root: the Dockerfile's, and those of the systemd unit.

    python tools/deploy_check.py

Needs root, Linux's overlay, systemd-analyze, the network (pip installs into the fresh root) and port 8000. The root is
this machine's with an empty layer over it, which vanishes with the process. In it an empty environment of this Python
stands for the image that FROM names, and pip takes cde-rag from the working tree, built as a wheel. RUN, USER,
ENTRYPOINT, CMD, HEALTHCHECK and STOPSIGNAL are run as they are written. Of the unit, systemd-analyze checks the keys,
and ExecStart runs as its user with the file systems that ProtectSystem, ProtectHome and PrivateTmp leave it.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "docs/deploy"
INSIDE = "CDE_RAG_DEPLOY_FOLDER"  # set in the process whose mounts are its own
ENVIRONMENT = "/opt/cde-rag"  # where the unit has it
KEY = "0123456789abcdef" * 4
START_S, STOP_S = 300, 45


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return the instructions of a Dockerfile with their arguments; comments are left out."""
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    found = [line.split(maxsplit=1) for line in lines.replace("\\\n", " ").splitlines() if line.strip()]
    return [(name.upper(), rest.strip()) for name, rest in found]


def unit_keys(unit: str) -> dict[str, str]:
    """Return the keys of a unit."""
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line and not line.startswith("#"))


def run(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> None:
    """Run a command, or exit with its status."""
    if code := subprocess.run(command, env=environment, check=False).returncode:
        sys.exit(f"{shlex.join(map(str, command))}: exit status {code}")


def made_root(folder: Path) -> Path:
    """Mount this machine's root with an empty layer over it."""
    run(["mount", "-t", "tmpfs", "layers", folder])
    upper, work, root = (folder / name for name in ("upper", "work", "root"))
    for path in (upper, work, root):
        path.mkdir()
    run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir=/,upperdir={upper},workdir={work}", root])
    run(["mount", "-t", "proc", "proc", root / "proc"])
    run(["mount", "-t", "sysfs", "-o", "ro", "sysfs", root / "sys"])
    run(["mount", "-t", "tmpfs", "devices", root / "dev"])
    (root / "dev/shm").mkdir(mode=0o1777)
    for name in ("null", "zero", "full", "random", "urandom"):
        (root / "dev" / name).touch()
        run(["mount", "--bind", f"/dev/{name}", root / "dev" / name])
    return root


def in_root(root: Path, command: Sequence[str], user: str = "root") -> list[str]:
    """Return the command that runs another in the root, as a user."""
    as_user = [] if user == "root" else ["setpriv", "--reuid", user, "--regid", user, "--init-groups"]
    return ["chroot", str(root), *as_user, *command]


def check_server(command: list[str], environment: Mapping[str, str], probe: list[str], stop: signal.Signals) -> None:
    """Start a server, wait until the probe succeeds, search, and stop it."""
    request = (
        "import json, os, urllib.request as u; r = u.Request('http://127.0.0.1:8000/v1/collections/papers/search', "
        "json.dumps({'query': 'parse a date'}).encode(), {'content-type': 'application/json', "
        "'authorization': 'Bearer ' + os.environ['CDE_RAG_API_KEY']}); print(u.urlopen(r).read().decode())"
    )
    started = time.monotonic()
    server = subprocess.Popen(command, env=environment)
    try:
        while subprocess.run(probe, env=environment, stderr=subprocess.DEVNULL, check=False).returncode:
            if server.poll() is not None or time.monotonic() - started > START_S:
                sys.exit(f"{shlex.join(command)}: not ready after {time.monotonic() - started:.0f} s")
            time.sleep(0.5)
        ready = time.monotonic() - started
        search = [*probe[: probe.index("-c") + 1], request]
        answer: dict[str, Any] = json.loads(subprocess.check_output(search, env=environment))
        hits = answer.get("data") or answer.get("hits") or []
        if not hits:
            sys.exit(f"{shlex.join(command)}: expected hits, found {answer}")
        server.send_signal(stop)
        code = server.wait(timeout=STOP_S)
    finally:
        server.kill()
    if code not in (0, -stop):
        sys.exit(f"{shlex.join(command)}: expected a graceful stop, found exit status {code}")
    print(f"ready after {ready:.1f} s, {len(hits)} hits, stopped with {code}", flush=True)


def check_dockerfile(root: Path, wheel: Path) -> None:
    """Run the instructions of the Dockerfile."""
    path = f"{ENVIRONMENT}/bin:{os.environ['PATH']}"
    found = f"{os.environ.get('PIP_FIND_LINKS', '')} {wheel.parent}".strip()
    constraints = str(ROOT / "constraints.txt")
    environment = {**os.environ, "PATH": path, "PIP_FIND_LINKS": found, "PIP_CONSTRAINT": constraints}
    parts: dict[str, str] = {}
    for name, rest in instructions((DEPLOY / "Dockerfile").read_text(encoding="utf-8")):
        print(f"{name} {rest}", flush=True)
        if name == "RUN":
            run(in_root(root, ["/bin/sh", "-c", rest], parts.get("USER", "root")), environment)
        elif name not in ("FROM", "USER", "EXPOSE", "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD"):
            sys.exit(f"{name}: this instruction is not known here. Add it to {Path(__file__).name}.")
        parts[name] = rest
    if parts["EXPOSE"] != "8000":
        sys.exit(f"EXPOSE: expected the port of the server, 8000, found {parts['EXPOSE']}")
    user = parts["USER"]
    serving = {"PATH": path, "HOME": f"/home/{user}", "CDE_RAG_API_KEY": KEY}
    command = [*json.loads(parts["ENTRYPOINT"]), *json.loads(parts["CMD"])]
    probe = json.loads(parts["HEALTHCHECK"].partition("CMD ")[2])
    stop = signal.Signals[parts["STOPSIGNAL"]]
    check_server(in_root(root, command, user), serving, in_root(root, probe, user), stop)


def check_unit(root: Path) -> None:
    """Verify the unit, and run its ExecStart in the file systems that it has."""
    place = root / "etc/systemd/system/cde-rag.service"
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DEPLOY / place.name, place)
    keys = unit_keys(place.read_text(encoding="utf-8"))
    run(in_root(root, ["systemd-analyze", "verify", "--man=no", f"/etc/systemd/system/{place.name}"]))
    print("systemd-analyze verify: no objection", flush=True)
    for name, value in (("ProtectSystem", "strict"), ("ProtectHome", "true"), ("PrivateTmp", "true")):
        if keys.get(name) != value:
            sys.exit(f"{name}: expected {value}, which {Path(__file__).name} imitates, found {keys.get(name)}")
    cache = root / "var/cache" / keys["CacheDirectory"]
    cache.mkdir(parents=True, exist_ok=True)
    run(in_root(root, ["chown", f"{keys['User']}:", f"/{cache.relative_to(root)}"]))
    for writable in (root / keys["ReadWritePaths"].lstrip("/"), cache):
        run(["mount", "--bind", writable, writable])
    for hidden in ("home", "tmp"):  # /root may hold this Python
        run(["mount", "-t", "tmpfs", "-o", f"mode={'1777' if hidden == 'tmp' else '000'}", "none", root / hidden])
    run(["mount", "-o", "remount,ro", root])
    user, (name, value) = keys["User"], keys["Environment"].split("=", 1)
    environment = {"PATH": "/usr/sbin:/usr/bin", "HOME": f"/home/{user}", "CDE_RAG_API_KEY": KEY, name: value}
    ready = "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/ready')"
    probe = in_root(root, [f"{ENVIRONMENT}/bin/python", "-c", ready], user)
    check_server(in_root(root, shlex.split(keys["ExecStart"]), user), environment, probe, signal.SIGTERM)


def check(folder: Path) -> None:
    """Run all checks, in a process whose mounts are its own."""
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"])
    (wheel,) = (folder / "dist").iterdir()
    texts = [f"Recipe {number}: how to parse the date of day {number} of a year." for number in range(100)]
    (folder / "notes.txt").write_text("\n\n".join(texts), encoding="utf-8")
    layers = folder / "layers"
    layers.mkdir()
    root = made_root(layers)
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    run(in_root(root, [str(base), "-m", "venv", ENVIRONMENT]))
    for data in (root / "data", root / "var/lib/cde-rag"):
        data.mkdir(parents=True)
        run([Path(sys.executable).with_name("cde-rag"), "index", folder / "notes.txt", data / "papers.faiss"])
    check_dockerfile(root, wheel)
    run(in_root(root, ["chown", "--recursive", "cde:cde", "/var/lib/cde-rag"]))
    check_unit(root)


def main() -> None:
    """Run all checks."""
    if INSIDE in os.environ:
        check(Path(os.environ[INSIDE]))
        return
    if os.geteuid():
        sys.exit("Expected root, which mounts and changes roots, found another user. Run it with sudo.")
    with tempfile.TemporaryDirectory() as place:  # removed where nothing is mounted in it
        run(["unshare", "--mount", sys.executable, *sys.argv], {**os.environ, INSIDE: place})


if __name__ == "__main__":
    main()
