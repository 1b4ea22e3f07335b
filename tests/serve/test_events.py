"""What happened, in sentences, and counts that only rise."""

import torch
from torch import nn

from resitta import Guard, adapt
from resitta.monitor.events import DomainChanged, GuardEnded, GuardFired
from resitta.serve.events import Events
from resitta.serve.learning import guard_counts


def test_a_reason_has_a_beginning_and_an_end(model: nn.Module) -> None:
    events, adapter = Events(), adapt(model, "resitta")
    events.on_event(adapter, GuardFired(samples=9, reason="unknown", value=3, bound=0, action="skip"))
    events.on_event(adapter, GuardFired(samples=9, reason="drift", value=2.5, bound=1.5, action="rollback"))
    events.on_event(adapter, GuardEnded(samples=99, reason="unknown", found=706, lasted=1500))
    events.on_event(adapter, GuardEnded(samples=99, reason="drift", found=2, lasted=128))
    events.on_event(adapter, DomainChanged(samples=1234, changes=2))
    assert {event.kind for event in events.newest()} == {"domain", "guard"}
    assert [event.text for event in events.newest()] == [
        "after 1,234 images another domain has begun",
        "drift has ended: 2 steps in 128 samples",
        "unknown has ended: 706 images in 1500 samples",
        "drift is 2.5, allowed is 1.5: rollback",
        "3 out-of-distribution images were not added to the memory",
    ]


def test_counts_of_guards_never_fall(model: nn.Module) -> None:
    adapter = adapt(model, "resitta", guard=Guard(window=64))
    before = adapter.state_dict()
    adapter(torch.zeros(64, 3, 16, 16))
    assert guard_counts(adapter)["unknown"] == 64
    adapter.load_state_dict(before)
    assert guard_counts(adapter)["unknown"] == 64
    adapter.reset()
    assert guard_counts(adapter)["unknown"] == 64
