"""Every table as a method with the meaning of its columns, generated from the analyses."""

from __future__ import annotations

from traceprof.api.tables.devices import TablesOfDevices
from traceprof.api.tables.hardware import TablesOfHardware
from traceprof.api.tables.programs import TablesOfPrograms
from traceprof.api.tables.ranks import TablesOfRanks
from traceprof.api.tables.traffic import TablesOfTraffic


class Tables(TablesOfPrograms, TablesOfDevices, TablesOfHardware, TablesOfTraffic, TablesOfRanks):
    """A method for each table of a run. Former names of tables are methods, too."""
