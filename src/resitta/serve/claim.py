"""One service per folder of states: the lock that an `Autosave` takes, too."""

from resitta.checkpoint.state_lock import Claim

__all__ = ["Claim"]
