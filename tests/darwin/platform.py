"""Makes our modules see ``sys.platform == "darwin"``, also while they are imported.

Only ours: the standard library and other packages were built for the system that really runs them, and believe
``sys.platform``.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence

OURS = "thunderfleet_"


class _Darwin(ast.NodeTransformer):
    """Replaces ``sys.platform`` by its value on macOS."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Called for each attribute."""
        self.generic_visit(node)
        if node.attr == "platform" and isinstance(node.value, ast.Name) and node.value.id == "sys":
            return ast.copy_location(ast.Constant("darwin"), node)
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module for macOS; does not use or write bytecode files."""

    def get_code(self, fullname: str) -> types.CodeType:
        """The module's code."""
        tree = _Darwin().visit(ast.parse(self.get_data(self.path), self.path))
        return compile(tree, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds our modules as usual, with the other loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Called by the import system."""
        if not fullname.startswith(OURS):
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
                    spec.loader = _Loader(fullname, spec.loader.path)
                return spec
        return None


def apply() -> None:
    """From now on; a module that is already imported keeps what it saw."""
    if loaded := [name for name in sys.modules if name.startswith(OURS)]:
        raise RuntimeError(f"imported before the rules of macOS: {', '.join(sorted(loaded))}")
    sys.meta_path.insert(0, _Finder())
