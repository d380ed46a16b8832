"""MILP solvers behind one protocol: CBC in a process of our own, HiGHS in this one."""
