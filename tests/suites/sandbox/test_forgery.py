"""Programs that want a pass without the right answer."""

from __future__ import annotations

import textwrap

import pytest
from dare_bench.suites.sandbox.suspects import suspicious

ANY = """
class Any({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return {hash}
    def __bool__(self): return True
    def __sub__(self, other): return 0
    def __abs__(self): return self
    def __lt__(self, other): return True
"""

# Finds the nonce of the job in the frames below and writes a report of its own.
WRITER = """
def add(x, y):
    import os, sys
    frame, job = sys._getframe(), None
    while frame is not None:
        job = frame.f_locals.get("job", job)
        report = frame.f_locals.get("report", None) or 3
        frame = frame.f_back
    count = sum(unit["counts"] for unit in job["units"])
    for number in range({count}):
        os.write(report, f"{{job['nonce']}} unit {{number}} passed \\n".encode())
    os.write(report, f"{{job['nonce']}} done 1\\n".encode())
    os._exit(0)
"""

# Answers with the expected value that stands behind its own call in the tests.
READER = """
def add(x, y):
    import ast, re, sys
    frame = sys._getframe()
    while frame is not None:
        job = frame.f_locals.get("job")
        if job is not None:
            for unit in reversed(job["units"]):
                found = re.search(rf"add\\({x}, {y}\\) == (.+)$", unit["code"])
                if found:
                    return ast.literal_eval(found[1])
        frame = frame.f_back
"""

# The same by the constants of the code that is being run.
CONSTANTS = """
def add(x, y):
    import sys
    frame = sys._getframe()
    while frame.f_code.co_filename != "<tests>":
        frame = frame.f_back
    return [value for value in frame.f_code.co_consts if isinstance(value, int)][-1]
"""

PATCHED = """
import builtins, math
builtins.abs = lambda value: 0
math.isclose = lambda *values, **options: True
def add(x, y):
    builtins.abs = lambda value: 0
    math.isclose = lambda *values, **options: True
    return 0
"""


@pytest.mark.parametrize("base", ["object", "int", "tuple", "list", "dict", "str", "float"])
def test_objects_that_equal_everything(run, base):
    outcome = run(ANY.format(base="" if base == "object" else base, hash=1) + "def add(x, y):\n    return Any()\n")
    assert outcome.rate == 0
    assert outcome.status == "failed"


WRAPPED = {
    "in a list": ("[Any()]", "assert add(1, 2) == [3]"),
    "in a tuple in a dict": ("{'a': (Any(),)}", "assert add(1, 2) == {'a': (3,)}"),
    "as a key": ("{Any(): 1}", "assert add(1, 2) == {3: 1}"),
    "in a set": ("{Any()}", "assert add(1, 2) == {3}"),
    "in a view": ("{Any(): 1}.keys()", "assert add(1, 2) == {3}"),
    "from a generator": ("(item for item in [Any()])", "assert list(add(1, 2)) == [3]"),
    "from map": ("map(lambda item: Any(), [1])", "assert list(add(1, 2)) == [3]"),
    "from a function": ("lambda: Any()", "assert add(1, 2)() == 3"),
    "in an argument": ("first.append(Any())", "items = []\nadd(items)\nassert items == [3]"),
    "in a difference": ("Any()", "assert abs(add(1, 2) - 3.0) < 1e-6"),
    "with a false name": ("Fake()", "assert add(1, 2) == 3"),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_objects_that_equal_everything_inside_others(run, name):
    value, test = WRAPPED[name]
    source = ANY.format(base="", hash=3) + "Fake = type('int', (Any,), {'__module__': 'builtins'})\n"
    outcome = run(source + f"def add(first, second=0):\n    return {value}\n", [test])
    assert not outcome.passed, outcome


@pytest.mark.parametrize("count", ["count", 3])
def test_reports_written_by_the_program(run, count):
    outcome = run(WRITER.format(count=count))
    assert outcome.status in ("forged", "unconfirmed")
    assert outcome.rate == 0
    assert {"_getframe", "f_back", "f_locals", "os._exit"} <= set(outcome.flagged)


@pytest.mark.parametrize("source", [READER, CONSTANTS], ids=["text", "constants"])
def test_answers_read_from_the_tests(run, source):
    outcome = run(source)
    assert (outcome.status, outcome.rate) == ("forged", 0)
    assert "_getframe" in outcome.flagged


def test_a_program_that_reads_some_answers_earns_nothing(run):
    partly = READER.replace("def add(x, y):", "def add(x, y):\n    if x == 7: return 0")
    outcome = run(partly)
    assert (outcome.status, outcome.rate) == ("forged", 0)


def test_tests_do_not_use_what_the_program_did_to_builtins_and_modules(run):
    tests = ["import math", "assert abs(add(1, 2) - 3.0) < 1e-6", "assert math.isclose(add(1, 2), 3.0)"]
    outcome = run(PATCHED, tests)
    assert outcome.rate == 0
    assert "builtins are written" in outcome.flagged


def test_tests_that_never_call_the_function_do_not_pass(run):
    assert run("def add(x, y):\n    return x\n", ["assert True"]).rate == 0


HONEST = {
    "numbers that are equal": ("1.0 * (x + y)", "assert add(1, 2) == 3"),
    "named tuple": ("__import__('collections').namedtuple('P', 'a b')(x, y)", "assert add(1, 2) == (1, 2)"),
    "counter": ("__import__('collections').Counter('ab')", "assert add(1, 2) == {'a': 1, 'b': 1}"),
    "default dict": ("__import__('collections').defaultdict(int, {1: 2})", "assert add(1, 2) == {1: 2}"),
    "fraction": ("__import__('fractions').Fraction(x, y)", "assert add(1, 2) == 0.5"),
    "decimal": ("__import__('decimal').Decimal(x)", "assert add(1, 2) == 1"),
    "date": (
        "__import__('datetime').date(2020, x, y)",
        "import datetime\nassert add(1, 2) == datetime.date(2020, 1, 2)",
    ),
    "iterator": ("iter([x, y])", "assert list(add(1, 2)) == [1, 2]"),
    "chain": ("__import__('itertools').chain([x], [y])", "assert list(add(1, 2)) == [1, 2]"),
    "closure": ("lambda z: x + y + z", "assert add(1, 2)(3) == 6"),
    "none": ("None", "assert add(1, 2) is None"),
    "not equal": ("x", "assert add(1, 2) != 2\nassert not add(1, 2) == 2"),
    "near": ("x / 3", "assert abs(add(1, 2) - 0.333) < 0.01"),
    "function as argument": ("x(y)", "assert add(lambda v: v + 1, 2) == 3"),
    "functions in a list": ("x[0](y)", "assert add([lambda v: v + 1], 2) == 3"),
    "class of the tests": ("x", "class Node: pass\nnode = Node()\nassert add(node, 1) is node"),
    "argument is changed": ("x.sort()", "items = [2, 1]\nassert add(items, 1) is None\nassert items == [1, 2]"),
    "error": ("x / 0", "try:\n    add(1, 2)\n    assert False\nexcept ZeroDivisionError:\n    assert True"),
    "loop of tests": ("x + y", "for a in range(20):\n    assert add(a, a) == 2 * a"),
    "set": ("[x, y, x]", "assert set(add(1, 2)) == set([1, 2])"),
    "recursion": ("x if y == 0 else add(x + 1, y - 1)", "assert add(1, 200) == 201"),
}


def test_honest_answers_of_many_kinds_pass(sandbox):
    from dare_bench.suites.sandbox import Program

    programs = [
        Program(f"def add(x, y):\n    return {value}\n", test if "\n" in test else [test], "add")
        for value, test in HONEST.values()
    ]
    outcomes = dict(zip(HONEST, sandbox.run(programs), strict=True))
    assert {name: outcome.detail for name, outcome in outcomes.items() if not outcome.passed} == {}


def test_a_program_text_with_a_check_function(run):
    tests = textwrap.dedent("""
        METADATA = {}
        def check(candidate):
            assert candidate(0, 1) == 1
            assert candidate(2, 3) == 5
            for value in range(5):
                assert candidate(value, helper(value)) == 2 * value
        check(add)
    """)
    assert run("def helper(x):\n    return x\ndef add(x, y):\n    return x + y\n", tests).passed
    assert run("def helper(x):\n    return x\ndef add(x, y):\n    return x\n", tests).tests == (False,)
    read = "def helper(x):\n    return x\n" + CONSTANTS.replace(
        "frame.f_code.co_consts", "(frame.f_code.co_consts + (1,))"
    )
    assert not run(read, tests).passed


def test_a_dataclass_and_its_module_work(run):
    source = """
        import dataclasses
        @dataclasses.dataclass
        class Pair:
            x: int
            y: int
        def add(x, y):
            return sum(dataclasses.astuple(Pair(x, y)))
        if __name__ == "__main__":
            print(add(int(input()), 1))
    """
    outcome = run(textwrap.dedent(source))
    assert outcome.passed
    assert outcome.flagged == ()


SUSPICIOUS = [
    ("import sys\nsys._getframe()", "_getframe"),
    ("import gc", "gc"),
    ("from gc import get_objects", "get_objects"),
    ("gc = __import__('gc')", "gc"),
    ("import inspect\ninspect.stack()", "inspect.stack"),
    ("import ctypes.util", "ctypes"),
    ("__builtins__['abs'] = 1", "builtins are written"),
    ("__builtins__.abs = 1", "builtins are written"),
    ("import os\nos._exit(0)", "os._exit"),
    ("import gc\n(", "gc"),
    ("().__class__.__base__.__subclasses__()", "__subclasses__"),
    ("open('/proc/self/mem')", "/proc/"),
]


@pytest.mark.parametrize(("source", "word"), SUSPICIOUS)
def test_suspicious_sources_are_named(source, word):
    assert word in suspicious(source)


@pytest.mark.parametrize(
    "source", ["", "def gcd(a, b):\n    return a", "x = {'inspection': 1}\nx['a'] = 2", "import math"]
)
def test_ordinary_sources_are_not(source):
    assert suspicious(source) == ()
