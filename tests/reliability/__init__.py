"""What hostile files and a failing machine do to traceprof: campaigns, and short runs of them."""
