"""What is put into a chat template before it is compiled, so that its work is counted where jinja asks nobody.

Loops and macros spend a step. What is compared, searched or made a key is weighed, and what is joined or copied is
checked: by filters, since a call of one is code without detours. Their names are none that a template can write.
"""

from typing import Final, TypeVar

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

SPEND: Final = "spend a step"
WEIGH: Final = "weigh what will be read"
COPIED: Final = "charge what was copied"

_Block = TypeVar("_Block", nodes.For, nodes.Macro, nodes.CallBlock)


def _filtered(node: nodes.Expr | None, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=line)


def _is_constant(node: nodes.Node) -> bool:
    """Comparing with it takes no longer than it is long."""
    if isinstance(node, nodes.List | nodes.Tuple):
        return all(isinstance(item, nodes.Const) for item in node.items)
    return isinstance(node, nodes.Const)


class CountedTemplate(NodeTransformer):
    """Rewrites in place: `CountedTemplate().visit(template)`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self._counted(node)
        if node.test is not None:
            node.test = nodes.And(_filtered(nodes.Const(1), SPEND, node.lineno), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:
        return self._counted(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:
        return self._counted(node)

    def _counted(self, node: _Block) -> _Block:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_filtered(nodes.Const(1), SPEND, node.lineno), lineno=node.lineno))
        return node

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:
        self.generic_visit(node)
        node.filter = _filtered(node.filter, "string", node.lineno)  # one of the filters that are checked
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Concat:
        self.generic_visit(node)
        node.nodes = [_filtered(one, "string", one.lineno) for one in node.nodes]
        return node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        operands: list[nodes.Compare | nodes.Operand] = [node, *node.ops]
        if any(_is_constant(operand.expr) for operand in operands):
            operands = [operand for operand in node.ops if operand.op in ("in", "notin")]  # what is searched is read
        for operand in operands:
            if not _is_constant(operand.expr):
                operand.expr = _filtered(operand.expr, WEIGH, node.lineno)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, WEIGH, node.lineno)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _filtered(node, COPIED, node.lineno) if isinstance(node.arg, nodes.Slice) else node
