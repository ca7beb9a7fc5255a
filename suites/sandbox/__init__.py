"""The sandbox: the only place where model-written code runs."""

from dare_bench.suites.sandbox.pool import Sandbox, shared
from dare_bench.suites.sandbox.probe import Isolation, best, probe
from dare_bench.suites.sandbox.program import LEVELS, Limits, Outcome, Program, SandboxError

__all__ = [
    "LEVELS",
    "Isolation",
    "Limits",
    "Outcome",
    "Program",
    "Sandbox",
    "SandboxError",
    "best",
    "probe",
    "shared",
]
