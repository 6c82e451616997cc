"""Loaded last by the process from which a local deployment's nodes are forked.

That process ignores Ctrl-C while it loads the other modules, as Ctrl-C would end it with a
traceback. From here on it reacts to Ctrl-C again.
"""

from sdfeel.core.interrupts import unblock_ctrl_c

unblock_ctrl_c()
