# SPDX-License-Identifier: BSD-3-Clause
"""What a program learns about how its operators ran, and what it may allow: nothing is silent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from finished import Program

STAGED = {"OPENREG_OPERATORS": "staged"}


@pytest.fixture(autouse=True)
def _everything_allowed() -> Iterator[None]:
    """Counts from 0; policy and details as at the start of a process."""
    torch.openreg.reset_operator_stats()
    yield
    for way in ("native", "aliased", "staged"):
        torch.openreg.set_operator_policy("allow", way)
    torch.openreg.set_operator_details(False)


def figures(way: str) -> dict[str, dict[str, Any]]:
    return torch.openreg.operator_stats()[way]


# by default aliased calls are one number; with details they are counted by operator
def test_details_of_aliased_calls() -> None:
    x = torch.ones(4, device="openreg")
    x + x
    assert torch.openreg.operator_stats()["aliased_calls"] >= 1
    assert figures("aliased") == {}
    torch.openreg.set_operator_details(True)
    torch.openreg.reset_operator_stats()
    for _ in range(3):
        torch.mul(x, x)
    torch.exp(x)
    detailed = figures("aliased")
    assert {name: count["calls"] for name, count in detailed.items()} == {"aten::mul": 3, "aten::exp": 1}
    assert all(count["seconds"] > 0 for count in detailed.values())
    assert torch.openreg.operator_stats()["aliased_calls"] == 4
    torch.openreg.set_operator_details(False)
    torch.mul(x, x)
    assert figures("aliased")["aten::mul"]["calls"] == 3
    assert torch.openreg.operator_stats()["aliased_calls"] == 5
    with pytest.raises(TypeError, match="invalid argument"):
        torch.openreg.set_operator_details(1)  # type: ignore[arg-type]


# staged calls: how often, how many bytes in both directions, how long
def test_figures_of_staged_calls(python: Program) -> None:
    python(
        """
        import time, torch
        x = torch.ones(512, 512, device="openreg")
        torch.openreg.reset_operator_stats()
        start = time.perf_counter()
        for _ in range(3):
            torch.mm(x, x)
        x.add_(1)
        x[0, 0].item()
        elapsed = time.perf_counter() - start
        stats = torch.openreg.operator_stats()
        staged = stats["staged"]
        assert staged["aten::mm"]["calls"] == 3 and staged["aten::mm"]["bytes"] == 3 * 2 * x.nbytes, staged
        assert staged["aten::add_"]["bytes"] == 2 * x.nbytes
        assert staged["aten::_local_scalar_dense"]["bytes"] == 4 and staged["aten::_local_scalar_dense"]["seconds"] > 0
        assert staged["aten::mm"]["seconds"] > staged["aten::add_"]["seconds"] > 0
        assert stats["staged_seconds"] == sum(one["seconds"] for one in staged.values()) <= elapsed
        assert stats["staged_bytes"] == sum(one["bytes"] for one in staged.values())
        assert (stats["native_calls"], stats["aliased_calls"], stats["native"]) == (0, 0, {})
        torch.openreg.reset_operator_stats()
        assert torch.openreg.operator_stats()["staged"] == {}
        """,
        **STAGED,
    )


# forbidden: an error before anything runs, with operator, device, driver and what to do; other operators run
def test_forbidden_modes(python: Program) -> None:
    python(
        """
        import pytest, torch
        x = torch.ones(3, 3, device="openreg:1")
        torch.openreg.reset_operator_stats()
        torch.openreg.set_operator_policy("forbid", operators=["aten::mm", "aten::exp_"])
        with pytest.raises(RuntimeError) as error:
            torch.mm(x, x)
        text = str(error.value)
        for part in ("aten::mm would run staged on openreg:1", 'driver "sim"', "the policy for operators forbids",
                     "openreg/kernels.h", 'torch.openreg.set_operator_policy("allow", operators=["aten::mm"])'):
            assert part in text, (part, text)
        with pytest.raises(RuntimeError, match="aten::exp_ would run staged"):
            x.exp_()
        assert torch.openreg.operator_stats()["staged"] == {}
        assert x.tolist() == [[1.0] * 3] * 3                 # reading is no operator
        assert (x * 2).cpu()[0, 0] == 2

        weight = torch.ones(3, requires_grad=True, device="openreg:1")
        loss = weight.exp().sum()
        torch.openreg.set_operator_policy("forbid")          # all of them; in autograd's threads too
        with pytest.raises(RuntimeError, match="would run staged on openreg:1"):
            loss.backward()
        torch.openreg.set_operator_policy("allow", operators=["aten::mm"])
        assert torch.mm(x, x)[0, 0].item() == 3
        with pytest.raises(RuntimeError, match="aten::add would run staged"):
            x + 1
        torch.openreg.set_operator_policy("allow")           # forgets the rules of single operators
        x + 1
        """,
        **STAGED,
    )


# a warning, once an operator and policy, through Python's warnings
def test_warnings(python: Program) -> None:
    python(
        """
        import warnings, torch
        x = torch.ones(3, 3, device="openreg")

        def warned(function, times=3):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(times):
                    function()
            assert all(one.category is UserWarning for one in caught)
            return [str(one.message) for one in caught]

        assert warned(lambda: x + x) == []
        torch.openreg.set_operator_policy("warn")
        (text,) = warned(lambda: x + x)
        assert text.startswith('aten::add runs staged on openreg:0 (driver "sim"), on copies'), text
        assert 'set_operator_policy("allow", operators=["aten::add"])' in text
        assert len(warned(lambda: (x - x, x + x))) == 1      # of sub
        torch.openreg.set_operator_policy("warn", operators=["aten::add"])
        assert len(warned(lambda: x + x)) == 1               # a policy set anew warns anew
        with torch.openreg.operator_policy("allow"):
            assert warned(lambda: x * x) == []
        assert len(warned(lambda: x * x)) == 1
        weight = torch.ones(3, requires_grad=True, device="openreg")
        assert any("aten::" in text for text in warned(lambda: weight.exp().sum().backward(), 1))
        """,
        **STAGED,
    )


# a policy for the aliased mode; the context manager restores what was, after an exception too
def test_the_context_manager() -> None:
    x = torch.ones(3, device="openreg")
    torch.openreg.set_operator_policy("forbid", "aliased", ["aten::exp"])
    with pytest.raises(ZeroDivisionError):
        with torch.openreg.operator_policy("forbid", mode="aliased"):
            with pytest.raises(RuntimeError, match=re.escape('"allow", mode="aliased", operators=["aten::sin"])')):
                x.sin()
            with torch.openreg.operator_policy("allow", mode="aliased", operators=["aten::cos", "aten::exp"]):
                x.cos()
                x.exp()
                with pytest.raises(RuntimeError, match="aten::sin would run aliased on openreg:0"):
                    x.sin()
            with pytest.raises(RuntimeError, match="aten::cos would run aliased"):
                x.cos()
            raise ZeroDivisionError
    x.sin()
    with pytest.raises(RuntimeError, match="aten::exp would run aliased"):
        x.exp()
    torch.openreg.set_operator_policy("allow", "aliased", operators=[])  # names none: changes nothing
    with pytest.raises(RuntimeError, match="aten::exp would run aliased"):
        x.exp()


# bad values are refused, by what they are and what they could be, and change nothing
@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("deny",), ValueError, "the policy must be one of 'allow', 'warn', 'forbid', but is 'deny'"),
        (("warn", "slow"), ValueError, "the mode must be one of 'native', 'aliased', 'staged', but is 'slow'"),
        (("forbid", "aliased", ["mm"]), ValueError, "named by namespace and name, without an overload"),
        (("forbid", "aliased", ["aten::add.Tensor"]), ValueError, "but got 'aten::add.Tensor'"),
        (("forbid", "aliased", ["aten::sin", "aten::ad"]), ValueError, "this PyTorch has no operator 'aten::ad'"),
        (("forbid", "aliased", "aten::sin"), TypeError, "operators must be a list of names, but is 'aten::sin'"),
        (("forbid", "aliased", [3]), TypeError, "operators must be names"),
    ],
)
def test_bad_policies(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=re.escape(text)):
        torch.openreg.set_operator_policy(*arguments)
    torch.ones(3, device="openreg").sin()
    torch.openreg.set_operator_policy("forbid", "aliased", ["other_library::unknown_yet"])


# the variable: later items count; what the program says comes after it
def test_the_policy_variable(python: Program) -> None:
    python(
        """
        import pytest, torch
        x = torch.ones(3, 3, device="openreg")
        with pytest.warns(UserWarning, match="aten::add runs staged"):
            x + x
        with pytest.raises(RuntimeError, match="aten::mm would run staged"):
            torch.mm(x, x)
        torch.openreg.set_operator_policy("allow")
        torch.mm(x, x)
        """,
        OPENREG_OPERATORS_POLICY="aten::exp=forbid,staged=warn,aten::mm=forbid",
        **STAGED,
    )
    python(
        """
        import pytest, torch
        torch.openreg.set_operator_policy("allow", operators=["aten::mm"])  # before any device is opened
        x = torch.ones(3, 3).to("openreg")
        torch.mm(x, x)
        with pytest.raises(RuntimeError, match="aten::add would run staged"):
            x + x
        """,
        OPENREG_OPERATORS_POLICY="staged=forbid",
        **STAGED,
    )


# a bad value is refused where it is read, by variable and value; importing and asking for devices still work
def test_bad_values_of_variables(python: Program) -> None:
    done = python(
        r"""
        import os, re
        import pytest, torch
        assert torch.openreg.device_count() == 2
        x = torch.empty(2, device="openreg")
        for variable, value, text in [
            ("OPENREG_OPERATORS_REPORT", "yes", "must be '0', '1' or 'detailed', but is 'yes'"),
            ("OPENREG_OPERATORS_REPORT", "\udcff\n", r"but is '\xff\x0a'."),
            ("OPENREG_OPERATORS_POLICY", "a=\udcff", r"but is 'a=\xff': the policy must be one of 'allow', 'warn', 'forbid', but is '\xff'"),
            ("OPENREG_OPERATORS_POLICY", "staged", "but is 'staged': 'staged' has no '='"),
            ("OPENREG_OPERATORS_POLICY", "staged=deny", "but is 'staged=deny': the policy must be one of"),
            ("OPENREG_OPERATORS_POLICY", "slow=warn", "but is 'slow=warn': the mode must be one of"),
            ("OPENREG_OPERATORS_POLICY", "aliased=forbid,,", "but is 'aliased=forbid,,': '' has no '='"),
            ("OPENREG_OPERATORS_POLICY", "aten::ad=warn", "but is 'aten::ad=warn': this PyTorch has no operator"),
        ]:
            os.environ[variable] = value
            for _ in range(2):
                with pytest.raises(RuntimeError, match=variable + ".*" + re.escape(text)):
                    x + 1
            del os.environ[variable]
        x + 1                                                # nothing of a refused list holds
        """,
        OPENREG_OPERATORS_REPORT="yes",
    )
    assert "openreg operators" not in done.stderr


# the report at exit: staged first, slowest first, with bytes; nothing where nothing ran or in a forked child
def test_the_report_at_exit(python: Program) -> None:
    done = python(
        """
        import os, sys, torch
        x = torch.ones(256, 256, device="openreg")
        y = torch.mm(x, x)
        x + x; x + x
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        """,
        OPENREG_OPERATORS_REPORT="1",
        **STAGED,
    )
    assert done.stderr.count("openreg operators") == 1, done.stderr
    header, *rows, last = [line.split() for line in done.stderr.split("openreg operators\n")[1].splitlines()]
    assert last[1:5] == ["operators", "ran", "on", "openreg,"] and int(last[0]) >= 3
    assert last[5:] == ["at", "most", "768.0", "KiB", "of", "a", "device", "in", "use"]
    assert header == ["mode", "operator", "calls", "seconds", "copied"]
    assert rows[-1] == ["aliased", "all", "0", "0", "B"]
    staged = {row[1]: row for row in rows if row[0] == "staged"}
    assert staged["aten::mm"][2] == "1" and staged["aten::mm"][4:] == ["512.0", "KiB"]
    assert staged["aten::add"][2] == "2" and staged["aten::add"][4:] == ["1.0", "MiB"]
    seconds = [float(row[3]) for row in rows if row[0] == "staged"]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0

    assert python("import torch; torch.openreg.device_count()", OPENREG_OPERATORS_REPORT="1").stderr == ""
    assert python("import torch; torch.ones(2, device='openreg') + 1", OPENREG_OPERATORS_REPORT="0").stderr == ""


# the detailed report has the aliased operators one by one; the same text is there for the asking
def test_the_detailed_report(python: Program) -> None:
    done = python(
        """
        import torch
        x = torch.ones(8, device="openreg")
        x.sin(); x.sin(); x.cos()
        print(torch.openreg.operator_report(), end="")
        """,
        OPENREG_OPERATORS_REPORT="detailed",
    )
    assert done.stderr.startswith(done.stdout) and " operators ran on openreg, " in done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    calls = {row[1]: int(row[2]) for row in rows if row[0] == "aliased"}
    assert calls["aten::sin"] == 2 and calls["aten::cos"] == 1 and calls["all"] >= 3
