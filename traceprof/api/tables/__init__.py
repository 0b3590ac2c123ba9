"""Every table as a method, with what its columns mean: written from what analyses declare."""

from __future__ import annotations

from traceprof.api.tables.devices import TablesOfDevices
from traceprof.api.tables.hardware import TablesOfHardware
from traceprof.api.tables.programs import TablesOfPrograms
from traceprof.api.tables.ranks import TablesOfRanks
from traceprof.api.tables.traffic import TablesOfTraffic


class Tables(TablesOfPrograms, TablesOfDevices, TablesOfHardware, TablesOfTraffic, TablesOfRanks):
    """Every table of a run, by noun; those that had a name of their own before keep it."""
