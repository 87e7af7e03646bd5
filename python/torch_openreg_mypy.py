# SPDX-License-Identifier: BSD-3-Clause
"""Plugin of mypy for programs that say ``torch.openreg``, ``x.openreg()`` and ``x.is_openreg``, or a vendor's name.

PyTorch's own types know none of them: importing the package adds them to PyTorch when a program runs. With::

    [tool.mypy]
    plugins = ["torch_openreg_mypy"]

mypy takes ``torch.openreg`` for the module ``torch_openreg.openreg``, which has types. The plugin is not in that
package because mypy would import PyTorch with it. Where the device has a vendor's name, which the drivers in mypy's
environment or ``OPENREG_DEVICE_NAME`` say, it is ``torch.mychip``, ``x.mychip()`` and ``x.is_mychip``.
"""

from __future__ import annotations

from collections.abc import Callable

from _torch_openreg_device_name import DEFAULT, choose
from mypy.nodes import ARG_OPT, ARG_STAR2, GDEF, MDEF, Argument, MypyFile, SymbolTableNode, TypeVarExpr, Var
from mypy.plugin import ClassDefContext, Plugin, ReportConfigContext
from mypy.plugins.common import add_attribute_to_class, add_method_to_class
from mypy.semanal import SemanticAnalyzer
from mypy.types import AnyType, NoneType, Type, TypeOfAny, TypeVarId, TypeVarType, UnionType
from mypy.typevars import fill_typevars

_MODULE = "torch_openreg.openreg"
_SELF = "_OpenregSelf"
_PRIORITY = 10  # of an import at the top of a file


def _chosen() -> str:
    try:
        return choose()
    except ValueError:  # `import torch_openreg` says why
        return DEFAULT


_NAME = _chosen()


def _any() -> AnyType:
    return AnyType(TypeOfAny.explicit)


def _keyword(name: str, of: Type) -> Argument:
    return Argument(Var(name, of), of, None, ARG_OPT)


def _device(context: ClassDefContext) -> Type | None:
    """``int | str | torch.device | None``; None while mypy hasn't come to torch.device."""
    device = context.api.named_type_or_none("torch._C.device")
    if device is None:
        return None
    named = [context.api.named_type(f"builtins.{name}") for name in ("int", "str")]
    return UnionType([*named, device, NoneType()])


def _add_method(context: ClassDefContext, arguments: list[Argument]) -> None:
    """Adds ``x.openreg()``, by the device's name, which returns its own class."""
    info = context.cls.info
    name, bound, default = f"{info.fullname}.{_SELF}", fill_typevars(info), AnyType(TypeOfAny.from_omitted_generics)
    info.names[_SELF] = SymbolTableNode(MDEF, TypeVarExpr(_SELF, name, [], bound, default))
    method = TypeVarId(-1, namespace=f"{info.fullname}.{_NAME}")
    itself = TypeVarType(_SELF, name, id=method, values=[], upper_bound=bound, default=default)
    add_method_to_class(context.api, context.cls, _NAME, arguments, itself, self_type=itself, tvar_def=itself)


def _add_flag(context: ClassDefContext) -> None:
    flag = add_attribute_to_class(context.api, context.cls, f"is_{_NAME}", context.api.named_type("builtins.bool"))
    flag.is_property = True


def _extend_tensor(context: ClassDefContext) -> None:
    _add_module(context)
    device = _device(context)
    if device is None:
        context.api.defer()
        return
    truth = context.api.named_type("builtins.bool")
    rest = Argument(Var("kwargs", _any()), _any(), None, ARG_STAR2)
    _add_method(context, [_keyword("device", device), _keyword("non_blocking", truth), rest])
    _add_flag(context)


def _extend_module(context: ClassDefContext) -> None:
    device = _device(context)
    if device is None:
        context.api.defer()
        return
    _add_method(context, [_keyword("device", device)])


def _add_module(context: ClassDefContext) -> None:
    """Makes the device's name, and ``openreg``, names of the module torch, which is read together with torch.Tensor."""
    assert isinstance(context.api, SemanticAnalyzer)
    modules = context.api.modules
    if "torch" in modules and _MODULE in modules:
        for name in (DEFAULT, _NAME):
            modules["torch"].names[name] = SymbolTableNode(GDEF, modules[_MODULE])


_EXTENDED: dict[str, Callable[[ClassDefContext], None]] = {
    "torch._tensor.Tensor": _extend_tensor,
    "torch.nn.modules.module.Module": _extend_module,
}


class OpenregPlugin(Plugin):
    """Adds to PyTorch's types what importing torch_openreg adds to PyTorch."""

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        """Lets mypy read the module with torch."""
        return [(_PRIORITY, _MODULE, -1)] if file.fullname == "torch" else []

    def report_config_data(self, ctx: ReportConfigContext) -> str:
        """What a cache depends on: one that was made under another name is not used."""
        return _NAME

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        """A function that adds the members, for the classes that get some."""
        return _EXTENDED.get(fullname)


def plugin(version: str) -> type[Plugin]:
    """What mypy calls, with its version."""
    return OpenregPlugin
