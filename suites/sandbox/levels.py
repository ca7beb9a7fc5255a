"""The command of each level of isolation: lists of arguments, built from nothing but what is given."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from dare_bench.suites.sandbox.program import Limits, SandboxError

#: Image of level ``docker``; it is never pulled.
DOCKER_IMAGE = "python:3.11-slim"
#: Folders that level ``unshare`` covers with small empty ones: what is world-writable, and homes.
COVERED = ("tmp", "var/tmp", "dev/shm", "home", "root", "run")
#: Stands for the file descriptor on which bubblewrap tells the process id of its child.
INFO = "{info}"

_COVER = """
mount --make-rprivate / || exit 1
size=$1; shift
for place in "$@"; do
  [ "$place" = -- ] && break
  shift
  if [ -d "$place" ]; then mount -t tmpfs -o size="$size",nosuid,nodev tmpfs "$place" || exit 1; fi
done
shift
cd /tmp && exec "$@"
"""


@dataclass(frozen=True)
class Command:
    """What is started for one program.

    Attributes:
        argv: arguments; `INFO` in them is replaced by a file descriptor.
        level: of isolation.
        container: name by which level ``docker`` ends it.
    """

    argv: tuple[str, ...]
    level: str
    container: str = ""


def command(
    level: str,
    python: str,
    code: str,
    *,
    uid: int | None,
    workers: int,
    limits: Limits,
    cpu_seconds: float,
    last_seconds: float,
    folder: str = "",
    name: str = "",
) -> Command:
    """Builds the command that runs Python code at a level.

    Args:
        level: of isolation.
        python: the interpreter, in a folder that the sandbox can read.
        code: text of a Python program.
        uid: unprivileged user to become first; null = stay who we are (needed of anybody but root).
        workers: programs that run at the same time.
        limits: of one program.
        cpu_seconds: CPU time of each process.
        last_seconds: time after which a program ends even if nobody is left who would stop it.
        folder: working folder at level ``none``.
        name: name of the container at level ``docker``.

    Returns:
        The command.
    """
    # Bubblewrap ends with its parent; the others would outlive one that is killed.
    watched = ("timeout", "--signal=KILL", f"{math.ceil(last_seconds)}")
    interpreter = _interpreter(python, code)
    if level == "docker":
        return Command((*_docker(limits, cpu_seconds, name), *watched, *_interpreter("python3", code)), level, name)
    # Without a user of its own, the limit counts everything this user runs, so it must leave room for that.
    processes = limits.processes if uid is not None else _tasks_of_user() + workers * limits.processes
    prefix = (*dropped(uid), *_limited(limits, processes, cpu_seconds))
    if level == "bwrap":
        return Command((*prefix, *_bwrap(limits), *interpreter), level)
    if level == "unshare":
        return Command((*prefix, *_unshare(limits), *watched, *interpreter), level)
    return Command((*prefix, _tool("env"), "-i", "-C", folder, *_environment(), *watched, *interpreter), level)


def dropped(uid: int | None) -> tuple[str, ...]:
    """Returns what turns root into an unprivileged user, for whom limits of processes hold."""
    if uid is None:
        return ()
    return (_tool("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--")


def _interpreter(python: str, code: str) -> tuple[str, ...]:
    # Not -I: it would ignore PYTHONHASHSEED, and verdicts would depend on the order of sets. The environment is empty
    # and the home folder is not there, so there is nothing else to ignore. -S would take exit() and packages away.
    return (python, "-s", "-B", "-X", "utf8", "-c", code)


def _environment(path: str = "/usr/bin") -> tuple[str, ...]:
    return (f"PATH={path}", "PYTHONHASHSEED=0", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1")


def _limited(limits: Limits, processes: int, cpu_seconds: float) -> tuple[str, ...]:
    return (
        _tool("prlimit"),
        f"--as={limits.memory}",
        f"--cpu={max(1, math.ceil(cpu_seconds))}",
        f"--fsize={limits.file_size}",
        f"--nofile={limits.open_files}",
        "--core=0",
        f"--nproc={processes}",
        "--",
    )


def _bwrap(limits: Limits) -> tuple[str, ...]:
    settings = [item for pair in _environment() for item in ("--setenv", *pair.split("=", 1))]
    return (
        _tool("bwrap"),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session"),
        # The program is process 1: bwrap then waits for its end itself. With a process 1 of bwrap's between them, the
        # end is left to the machine's init, and until that looks, dead processes count against the limit.
        "--as-pid-1",
        *("--info-fd", INFO),
        *("--ro-bind", "/usr", "/usr"),
        *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib", "--symlink", "usr/lib64", "/lib64"),
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--proc", "/proc", "--dev", "/dev"),
        *("--size", str(limits.disk), "--tmpfs", "/tmp"),
        # Both are file systems in memory without a limit of size, and writable unless this is said.
        *("--remount-ro", "/dev", "--remount-ro", "/"),
        *("--chdir", "/tmp", "--clearenv", *settings, "--cap-drop", "ALL"),
    )


def _unshare(limits: Limits) -> tuple[str, ...]:
    covered = [os.sep + place for place in COVERED]
    return (
        _tool("unshare"),
        *("--user", "--map-root-user", "--net", "--pid", "--mount", "--ipc", "--uts", "--fork", "--kill-child"),
        *("--mount-proc", "--", "/bin/sh", "-c", _COVER, "sh", str(limits.disk), *covered, "--"),
        *(_tool("setpriv"), "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs", "--"),
        *(_tool("env"), "-i", *_environment()),
    )


def _docker(limits: Limits, cpu_seconds: float, name: str) -> tuple[str, ...]:
    cpu = max(1, math.ceil(cpu_seconds))
    settings = [item for pair in _environment("/usr/local/bin:/usr/bin") for item in ("--env", pair)]
    return (
        *(_tool("docker"), "run", "--rm", "--interactive", "--pull=never", "--name", name, "--network=none"),
        *("--read-only", f"--tmpfs=/tmp:size={limits.disk},mode=1777", "--workdir=/tmp", "--user=65534:65534"),
        *("--cap-drop=ALL", "--security-opt=no-new-privileges", f"--pids-limit={limits.processes}"),
        *(f"--memory={limits.memory}", f"--memory-swap={limits.memory}", f"--ulimit=cpu={cpu}:{cpu}"),
        *(f"--ulimit=fsize={limits.file_size}", f"--ulimit=nofile={limits.open_files}", "--ulimit=core=0"),
        *(*settings, DOCKER_IMAGE),
    )


def _tool(name: str) -> str:
    """Returns the path of a program.

    Raises:
        SandboxError: it is not installed.
    """
    found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin")
    if found is None:
        raise SandboxError(f"{name} is not installed")
    return found


def _tasks_of_user() -> int:
    """Returns how many processes and threads this user runs."""
    count, uid = 0, os.getuid()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:  # it has ended meanwhile
                continue
    return count


def pythons(preferred: str | None = None) -> Sequence[str]:
    """Returns the interpreters to try: the given one, or those of the system."""
    if preferred:
        return [preferred]
    places = ("/usr/bin/python3", "/usr/local/bin/python3", "/bin/python3")
    return [path for path in places if os.access(path, os.X_OK)]
