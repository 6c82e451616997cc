"""Loaded last by the process from which a local deployment's nodes are forked.

It ignores Ctrl-C at first, which would end it with a traceback while it loads the others.
"""

from sdfeel.core.interrupts import unblock_ctrl_c

unblock_ctrl_c()
