"""What runs inside the sandbox: reads a job from standard input, runs the program, then its tests, and reports.

Its text is handed to the system's Python, so it uses the standard library only and the syntax of Python 3.8. It reports
on the pipe that was its standard output, each line with the nonce of the job; what the program prints goes to standard
error. Nothing here is a secret from the program, which runs in this very process: reports are believed only after a
second run with tests that must fail.
"""

import collections
import contextlib
import json
import operator
import os
import sys
import types

# Names the program could replace in the builtins module are bound before it runs.
_exec, _len, _type, _isinstance, _str, _iter = exec, len, type, isinstance, str, iter
_write, _leave = os.write, os._exit


class Refused(Exception):
    """A result whose type could be built to equal everything."""


_PLAIN_BASES = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_VIEWS = (type({}.keys()), type({}.values()), type({}.items()))
_LAZY = {*_FUNCTIONS, types.GeneratorType, types.CoroutineType}  # what they give is looked at, whoever made them
_MUTABLE = (list, dict, set, bytearray)


class Values:
    """Lets through values of known types; makes subclasses plain, guards functions and iterators."""

    def __init__(self, modules):
        # Fixed before the program runs: neither a faked module nor a faked __module__ gets a type in here.
        self.allowed = {kind for module in modules for kind in vars(module).values() if _isinstance(kind, type)}
        self.allowed |= {type(None), type(...), type(NotImplemented), *_VIEWS}
        held = {collections.UserDict, collections.UserList, collections.UserString, collections.ChainMap}
        self.allowed -= {type, object, slice, *held}  # these compare what they hold
        self.atoms = {int, float, complex, bool, str, bytes, type(None)}

    def plain(self, value, known=(), above=()):
        """Returns the value, or a plain copy of it; raises Refused."""
        kind = _type(value)
        if kind in self.atoms or id(value) in above:
            return value
        if kind in (tuple, list, set, frozenset) or (kind.__name__ == "deque" and kind in self.allowed):
            if self.atoms.issuperset(map(_type, value)):
                return value
            items = [self.plain(item, known, (*above, id(value))) for item in value]
            return value if all(map(operator.is_, items, value)) else kind(items)
        if _isinstance(value, dict) and kind in self.allowed:
            inner = (*above, id(value))
            keys = [self.plain(key, known, inner) for key in value]
            items = [self.plain(item, known, inner) for item in value.values()]
            same = all(map(operator.is_, keys, value)) and all(map(operator.is_, items, value.values()))
            return value if same else dict(zip(keys, items))  # noqa: B905  # strict= is newer than this Python may be
        if kind in _VIEWS:
            held = list(value)
            if self.plain(held, known, above) is held:
                return value
            raise Refused("a view of a dictionary holds values of other types")
        if kind.__name__ == "ndarray" and kind in self.allowed and value.dtype.kind == "O":
            return self.plain(value.tolist(), known, above)
        if kind in (map, filter, zip, enumerate, reversed) or (kind not in self.allowed and hasattr(kind, "__next__")):
            return (self.plain(item, known) for item in value)
        if kind in self.allowed or kind in known:
            return value
        if kind in _FUNCTIONS or kind.__name__ == "partial":
            return lambda *args, **named: self.plain(value(*args, **named), known)
        if kind is types.CoroutineType:
            return self._awaited(value, known)
        for base in _PLAIN_BASES:
            if issubclass(kind, base):  # a named tuple, an enumeration of numbers, a Counter of one's own
                return self.plain(dict(value.items()) if base is dict else base(value), known, above)
        raise Refused("a result of type " + _str(kind.__name__)[:60] + " is not compared")

    async def _awaited(self, coroutine, known):
        return self.plain(await coroutine, known)

    def kinds(self, values, found=None):
        """Types of the test's own that are inside its arguments: the program may return them."""
        found = set() if found is None else found
        for value in values:
            kind = _type(value)
            if kind in (tuple, list, set, frozenset, dict):
                items = value.values() if kind is dict else value
                if not self.atoms.issuperset(map(_type, items)):
                    self.kinds(items, found)
            elif kind not in self.allowed:
                found.add(kind)
        return found


def guarded(function, values, calls, restore):
    """The only thing of the program that tests can reach: counts its calls and looks at what comes out."""

    def proxy(*args, **named):
        calls[0] += 1
        known = values.kinds((*args, *named.values()))
        result = function(*args, **named)
        restore()
        for value in (*args, *named.values()):
            if _type(value) in _MUTABLE and values.plain(value, known) is not value:
                raise Refused("an argument was given a value of another type")
        return values.plain(result, known - _LAZY)

    return proxy


def described(error):
    """An exception in words, without its own idea of how to print it."""
    kind = _type(error)
    text = kind.__name__ if kind.__module__ in ("builtins", "__main__") else "an exception"
    first = error.args[0] if _type(error.args) is tuple and error.args else None
    return text + ": " + first[:200] if _type(first) is str and first else text


def main():
    """Runs one job and leaves without waiting for threads."""
    job = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    report = os.dup(1)
    os.dup2(2, 1)
    sys.stdout.reconfigure(line_buffering=True)  # nothing is flushed when this leaves
    nonce = job["nonce"]

    def say(*words):
        line = " ".join(word.replace("\n", " ").replace("\r", " ") for word in (nonce, *words)) + "\n"
        _write(report, line.encode("utf-8", "backslashreplace"))

    # If memory of the whole machine runs out, this goes first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    modules = []
    for name in job["modules"]:
        with contextlib.suppress(ImportError):
            modules.append(__import__(name))
    if any(module.__name__ == "random" for module in modules):
        sys.modules["random"].seed(0)
    builtin = sys.modules["builtins"]
    values = Values([builtin, *(module for module in modules if module.__name__ in job["types"])])
    saved = [(vars(module), dict(vars(module))) for module in (builtin, *modules)]

    def restore():  # of builtins and of the modules of the tests, in case the program wrote to them
        for now, before in saved:
            now.update(before)

    names = {"__builtins__": dict(vars(builtin)), "__name__": "tests"}
    units = [(compile(unit["code"], "<tests>", "exec"), unit["counts"]) for unit in job["units"]]
    calls = [0]
    sys.argv = ["solution"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    solution = types.ModuleType("solution")
    sys.modules["solution"] = solution
    say("ready")
    try:
        _exec(compile(job["source"], "<solution>", "exec", dont_inherit=True), vars(solution))
        restore()
        for name in job["names"]:
            function = vars(solution).get(name)
            if callable(function):
                counted = calls if name == job["entry_point"] else [0]
                names[name] = guarded(function, values, counted, restore)
        if job["entry_point"] not in names:
            raise Refused("no function " + job["entry_point"])
    except BaseException as error:
        say("error", described(error))
        _leave(0)
    number = 0
    for code, counts in units:
        restore()
        said = ""
        try:
            _exec(code, names)
        except BaseException as error:
            said = described(error)
        if counts:
            if not said and not calls[0]:
                said = "the function was never called"
            say("unit", str(number), "failed" if said else "passed", said)
            number += 1
    say("done", str(calls[0]))
    _leave(0)


if __name__ == "__main__":
    main()
