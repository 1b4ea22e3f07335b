"""One runtime for everything that predicts in one thread and learns in another.

`adapt(model, background=True)`, the service (`resitta.serve`) and its processes on Ray (`resitta.distributed`) are
built from the same three parts:

- `learn_queue`: a bounded queue of predicted samples. It serves clients in turn and counts every sample it drops.
- `learner_thread`: the one thread that learns. It takes samples from the queue and runs the tasks that need the learner
  for themselves (save, reset, rollback) in the order in which they were submitted.
- `weight_handoff`: versioned, double-buffered publication of the weights that predictions need.

Guarantees:

1. A prediction never waits for learning, and never sees half-written weights.
2. Samples of one client are learned from in order, each at most once; `Counters` accounts for every one.
3. Tasks, and code that holds the learner thread's lock, have exclusive access to the learner.
4. An error while learning ends neither the thread nor predictions; the user of the thread is told.
5. `fork()` waits until no lock is held. A forked process starts a thread of its own when it needs one.
6. Locks are taken in the order of `locks.LockRank`; SIGINT is deferred until a change is complete.
"""
