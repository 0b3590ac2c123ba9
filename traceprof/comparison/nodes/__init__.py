"""Nodes beside one another: independent or synchronised, forward alone or with the backward."""

from traceprof.comparison.nodes.compared import nodes as nodes
from traceprof.comparison.nodes.rounds import NodeRounds as NodeRounds
