"""Recorded values of published training algorithms, one module per file of them, found by its name.

`dare-bench conformance algorithms DIR` pairs every file of DIR (``<stem>.json``, ``<stem>.safetensors`` or both) with the
module ``<stem>.py`` of this package. A file without a module is a failure; so is a recorded value that its module never
reads. Modules whose name begins with an underscore hold what several of them share.

How to write one:

    \"\"\"spg.json: sequence surrogates of SPG, computed by the published trainer.\"\"\"

    from collections.abc import Iterator

    from dare_bench.dare.conformance.fixture import Compared, Fixture

    #: Recorded values that are not compared: path in the file -> why. A path covers all that lies below it.
    NOT_COMPARED = {"mask_example.random.seed0": "drawn by a generator of the published trainer"}


    def cases(data: Fixture) -> Iterator[Compared]:
        logits = data.tensor("logits")                     # of the .safetensors, else of the top level of the .json
        for name, case in data["cases"].items():           # the .json, as dicts and lists
            expected = Fixture.array(case["expected"])     # lists of numbers as a tensor, floats in float64
            yield Compared(f"{name} loss", expected, found)            # absolute 2e-5; relative above 1
            yield Compared(f"{name} mask", case["mask"], mask)         # integers and booleans must be equal
            yield Compared(f"{name} exact", case["f64"], found, 1e-9)  # computed in float64 by both

What is found must come from the algorithm's own rows, loss and estimators: build `Rows` or a `Batch` from the recorded ids,
masks and logits and call them. Strings and single integers of a file (sources, sizes, ids) need not be read.
"""
