"""The conformance suite: what every method promises, runnable on a method of your own.

>>> import resitta
>>> passed = resitta.check_method("source")
>>> "reset_is_bit_exact" in passed
True
"""

from resitta.conformance.promises import CHECKS
from resitta.conformance.subject import spread_images, spread_network, tiny_network
from resitta.conformance.suite import check_method

__all__ = ["CHECKS", "check_method", "spread_images", "spread_network", "tiny_network"]
