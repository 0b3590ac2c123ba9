"""Counters of the machine, sampled by the recorder while the program runs.

The sampling is done outside the recorded processes: it costs them nothing and sees all ranks of
the node. Counters are stored as they are (cumulative); rates are for those who read them.
"""
