"""Sample counters of the machine from the recorder while the program runs.

Sampling takes place outside the recorded processes: it costs them no time and covers all ranks of
the node. Counters are stored unchanged (cumulative). Readers compute the rates.
"""
