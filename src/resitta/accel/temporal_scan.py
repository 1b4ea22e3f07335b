"""Triton kernels of the label prior: three a batch, with all that is remembered in the registers of a program.

They compute what `resitta.training.temporal_filter` does, in single precision; `resitta.training.device_filter` calls
them. This module imports Triton, so import it lazily.
"""

# ruff: noqa: PLR0124, PLR0915, PLR0917  (kernels: NaN is what differs from itself; arguments are by position)

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["classes"])
def prepare(
    logits,
    last,
    known,
    p,
    teaches,
    fresh,
    classes,
    has_known: tl.constexpr,
    tolerance: tl.constexpr,
    width: tl.constexpr,
):
    """The outputs of sample t at each temperature, and what it is good for: 0 nothing, 1 an answer, 2 learning, too."""
    t, k, inf = tl.program_id(0), tl.arange(0, width), float("inf")
    inside = k < classes
    z = tl.load(logits + t * classes + k, mask=inside, other=-inf).to(tl.float32)
    most = tl.max(tl.where(z == z, z, inf), axis=0)
    usable = tl.abs(most) < inf
    now = z - most
    if t == 0:
        before = tl.load(last + k, mask=inside, other=-inf)
    else:
        row = tl.load(logits + (t - 1) * classes + k, mask=inside, other=-inf).to(tl.float32)
        top = tl.max(tl.where(row == row, row, inf), axis=0)
        before = tl.where(tl.abs(top) < inf, row - top, 1.0)
    near = (tl.abs(now - before) <= tolerance * (1 - now)) | (now == before) | (k >= classes)
    teach = usable & (tl.sum((near == 0).to(tl.int32), axis=0) > 0)
    if has_known:
        teach = teach & (tl.load(known + t) != 0)
    tl.store(teaches + t, usable.to(tl.int32) + teach.to(tl.int32))
    if t == tl.num_programs(0) - 1:
        tl.store(fresh + k, tl.where(usable, now, 1.0), mask=inside)
    raised = tl.where(inside, tl.exp(tl.where(usable, now, 0.0) * 0.5), 0.0)
    n = tl.num_programs(0)
    for m in tl.static_range(2, -1, -1):
        tl.store(p + (m * n + t) * classes + k, raised / tl.sum(raised, axis=0), mask=inside)
        raised = raised * raised


@triton.jit(do_not_specialize=["n", "classes", "most_closed"])
def scan(
    shares_in,
    sums_in,
    counts_in,
    shares,
    sums,
    counts,
    constants,
    p,
    teaches,
    answers,
    speaking,
    closed,
    foresight,
    n,
    classes,
    most_closed,
    long: tl.constexpr,
    experts: tl.constexpr,
    length: tl.constexpr,
    blocks: tl.constexpr,
    least: tl.constexpr,
    memory: tl.constexpr,
    errors: tl.constexpr,
    evidence: tl.constexpr,
    tiny: tl.constexpr,
    null_prior: tl.constexpr,
    base_short: tl.constexpr,
    base_long: tl.constexpr,
    null_short: tl.constexpr,
    null_long: tl.constexpr,
    small: tl.constexpr,
    rows: tl.constexpr,
    ring_rows: tl.constexpr,
    width: tl.constexpr,
):
    """The filter at temperature m, sample by sample: `TemporalFilter.take` and `look`."""
    m, k, e = tl.program_id(0), tl.arange(0, width), tl.arange(0, 8)
    inside, real = k < classes, e < experts
    both = real[:, None] & inside[None, :]
    place = m * rows * classes
    trust, rate = tl.load(constants + e), tl.load(constants + 8 + e)
    handicap = tl.load(constants + 16 + e)
    is_long, often = e == long, real & (e > long)
    belief = tl.load(shares_in + place + e[:, None] * classes + k[None, :], mask=both, other=0.0)
    place += experts * classes
    base0 = tl.load(shares_in + place + k, mask=inside, other=1.0)
    base1 = tl.load(shares_in + place + classes + k, mask=inside, other=1.0)
    null0 = tl.load(shares_in + place + 2 * classes + k, mask=inside, other=1.0)
    null1 = tl.load(shares_in + place + 3 * classes + k, mask=inside, other=1.0)
    weighted = tl.load(shares_in + place + 4 * classes + k, mask=inside, other=0.0)
    plain = tl.load(shares_in + place + 5 * classes + k, mask=inside, other=0.0)
    own = m * (small + blocks * 8)
    strength, logs = tl.load(sums_in + own + e), tl.load(sums_in + own + 8 + e)
    speaks = tl.load(sums_in + own + 16 + e)
    mass0, mass1 = tl.load(sums_in + own + 24), tl.load(sums_in + own + 25)
    seen0, seen1 = tl.load(sums_in + own + 26), tl.load(sums_in + own + 27)
    weight = tl.load(sums_in + own + 28)
    ring, ring_in = sums + own + small, sums_in + own + small
    r = tl.arange(0, ring_rows)
    kept = tl.load(ring_in + r[:, None] * 8 + e[None, :], mask=r[:, None] < blocks, other=0.0)
    tl.store(ring + r[:, None] * 8 + e[None, :], kept, mask=r[:, None] < blocks)
    tl.debug_barrier()
    samples, skipped = tl.load(counts_in), tl.load(counts_in + 4)
    now_closed = tl.full((), 0, tl.int32)
    rest = (1 - trust) / classes
    q, flag = tl.load(p + m * n * classes + k, mask=inside, other=0.0), tl.load(teaches)
    for t in range(n):
        row = (m * n + t) * classes
        ahead = tl.minimum(t + 1, n - 1)  # the next sample is on its way while this one is computed
        q_next = tl.load(p + (m * n + ahead) * classes + k, mask=inside, other=0.0)
        flag_next = tl.load(teaches + ahead)
        teach = flag == 2
        likelihood = tl.where(is_long[:, None], (q / base1)[None, :], (q / base0)[None, :])
        joint = tl.where(both, (belief + rest[:, None]) * likelihood, 0.0)
        total = tl.sum(joint, axis=1)
        total = tl.where(real & (flag > 0), total, 1.0)
        ratio0, ratio1 = q / null0, q / null1
        found0 = tl.sum(belief * ratio0[None, :], axis=1) + 1 - trust
        found1 = tl.sum(belief * ratio1[None, :], axis=1) + 1 - trust
        # How much better frequencies are than null shares with one class moved.
        distance = tl.where(inside[None, :], tl.abs(belief - trust[:, None] * null0[None, :]), -1.0)
        moved = tl.argmax(distance, axis=1)
        here = k[None, :] == moved[:, None]
        general = tl.sum(tl.where(here, null0[None, :], 0.0), axis=1)
        share = tl.sum(tl.where(here, belief, 0.0), axis=1) + (1 - trust) * general
        ratio = tl.sum(tl.where(here, ratio0[None, :], 0.0), axis=1)
        others = (1 - ratio * general) / (1 - general)
        less = tl.where(often, others + share * (ratio - others), 1.0)
        over_long = (1 + tl.sum(tl.where(often, found1, 0.0), axis=0)) / (experts - long)
        less = tl.where(is_long, over_long, less)
        gained = tl.log(tl.where(real, tl.where(is_long, found1, found0), 1.0))
        earlier = memory * strength
        before = tl.exp(tl.minimum(tl.maximum(earlier - handicap, -30.0), 30.0)) * speaks
        foretold = (1 + tl.sum(before * total, axis=0)) / (1 + tl.sum(before, axis=0))
        strength = tl.where(teach, earlier + gained, strength)
        weights = tl.exp(tl.minimum(tl.maximum(strength - handicap, -30.0), 30.0)) * speaks
        mixture = tl.sum(joint * (weights / total)[:, None], axis=0) + q
        answer = tl.log(tl.maximum(mixture / (1 + tl.sum(weights, axis=0)), 1.1754943508222875e-38))
        tl.store(answers + row + k, answer, mask=inside)
        tl.store(speaking + m * n + t, tl.max(speaks, axis=0))
        tl.store(closed + t, now_closed, mask=m == 0)
        # Learn.
        following = joint * (trust * rate / total)[:, None] + (1 - rate)[:, None] * belief
        belief = tl.where(teach, following, belief)
        worth = tl.where(teach, tl.minimum(tl.maximum(1 / tl.sqrt(foretold), 0.1), 10.0), 0.0)
        weighted += worth * q
        weight += worth
        plain += tl.where(teach, q, 0.0)
        logs += tl.where(teach, gained - tl.log(less), 0.0)
        samples += teach.to(tl.int64)
        skipped += (flag == 1).to(tl.int64)
        if teach & (samples % length == 0):
            base0 = tl.where(inside, tl.maximum((mass0 * base0 + weighted) / (mass0 + weight), tiny), 1.0)
            base1 = tl.where(inside, tl.maximum((mass1 * base1 + weighted) / (mass1 + weight), tiny), 1.0)
            mass0 = tl.minimum(mass0 + weight, base_short * classes)
            mass1 = tl.minimum(mass1 + weight, base_long * classes)
            uniform = null_prior / classes
            left0 = tl.minimum(seen0, null_short) / tl.maximum(seen0, 1.0)
            left1 = tl.minimum(seen1, null_long) / tl.maximum(seen1, 1.0)
            sum0 = left0 * ((seen0 + null_prior) * null0 - uniform) + plain + uniform
            sum1 = left1 * ((seen1 + null_prior) * null1 - uniform) + plain + uniform
            seen0, seen1 = left0 * seen0 + length, left1 * seen1 + length
            null0 = tl.where(inside, sum0 / (seen0 + null_prior), 1.0)
            null1 = tl.where(inside, sum1 / (seen1 + null_prior), 1.0)
            block = samples // length
            tl.store(ring + ((block - 1) % blocks) * 8 + e, logs / length)
            tl.debug_barrier()
            count = tl.minimum(block, blocks).to(tl.int32)
            counted = r[:, None] < count
            kept = tl.load(ring + r[:, None] * 8 + e[None, :], mask=counted, other=0.0)
            tl.debug_barrier()
            added, size = tl.sum(kept, axis=0), count.to(tl.float32)
            mean = added / size
            squares = tl.sum(tl.where(counted, (kept - mean[None, :]) * (kept - mean[None, :]), 0.0), axis=0)
            error = tl.sqrt(squares / tl.maximum(size * (size - 1), 1.0))
            sure = (count >= least) & (mean > tl.maximum(errors * error, evidence)) & real
            speaks = sure.to(tl.float32)
            tl.store(foresight + m * most_closed + now_closed, tl.max(tl.where(e < long, added, -float("inf")), axis=0))
            now_closed += 1
            weighted, plain = tl.zeros_like(weighted), tl.zeros_like(plain)
            weight, logs = weight * 0.0, tl.zeros_like(logs)
        q, flag = q_next, flag_next
    place = m * rows * classes
    tl.store(shares + place + e[:, None] * classes + k[None, :], belief, mask=both)
    place += experts * classes
    tl.store(shares + place + k, base0, mask=inside)
    tl.store(shares + place + classes + k, base1, mask=inside)
    tl.store(shares + place + 2 * classes + k, null0, mask=inside)
    tl.store(shares + place + 3 * classes + k, null1, mask=inside)
    tl.store(shares + place + 4 * classes + k, weighted, mask=inside)
    tl.store(shares + place + 5 * classes + k, plain, mask=inside)
    tl.store(sums + own + e, strength)
    tl.store(sums + own + 8 + e, logs)
    tl.store(sums + own + 16 + e, speaks)
    tl.store(sums + own + 24, mass0)
    tl.store(sums + own + 25, mass1)
    tl.store(sums + own + 26, seen0)
    tl.store(sums + own + 27, seen1)
    tl.store(sums + own + 28, weight)
    if m == 0:
        tl.store(counts, samples)
        tl.store(counts + 4, skipped)
        tl.store(counts + 2, tl.load(counts_in + 2))
        tl.store(counts + 3, tl.load(counts_in + 3))
        tl.store(closed + n, now_closed)


@triton.jit
def _temperature(foresight, counts_in, closed, most_closed):
    """The temperature at which the chains foretold best when the last block was closed."""
    last = tl.maximum(closed - 1, 0)
    cold, even = tl.load(foresight + last), tl.load(foresight + most_closed + last)
    hot = tl.load(foresight + 2 * most_closed + last)
    best = tl.where((hot > even) & (hot > cold), 2, tl.where(even > cold, 1, 0))
    return tl.where(closed > 0, best, tl.load(counts_in + 1).to(tl.int32))


@triton.jit(do_not_specialize=["n", "classes", "most_closed"])
def choose(
    logits,
    out,
    counts_in,
    counts,
    sums,
    teaches,
    answers,
    speaking,
    closed,
    foresight,
    n,
    classes,
    most_closed,
    stride: tl.constexpr,
    width: tl.constexpr,
):
    """Answer sample t at the temperature of its block, and count."""
    t, k = tl.program_id(0), tl.arange(0, width)
    inside = k < classes
    m = _temperature(foresight, counts_in, tl.load(closed + t), most_closed)
    on = (tl.load(speaking + m * n + t) > 0) & (tl.load(teaches + t) > 0)
    z = tl.load(logits + t * classes + k, mask=inside, other=-float("inf"))
    answer = tl.load(answers + (m * n + t) * classes + k, mask=inside, other=-float("inf"))
    tl.store(out + t * classes + k, tl.where(on, answer.to(z.dtype), z), mask=inside)
    changed = on & (tl.argmax(answer, axis=0) != tl.argmax(z.to(tl.float32), axis=0))
    tl.atomic_add(counts + 2, on.to(tl.int64))
    tl.atomic_add(counts + 3, changed.to(tl.int64))
    if t == 0:
        m = _temperature(foresight, counts_in, tl.load(closed + n), most_closed)
        tl.store(counts + 1, m.to(tl.int64))
        speaks = tl.load(sums + m * stride + 16 + tl.arange(0, 8))
        tl.store(counts + 5, (tl.max(speaks, axis=0) > 0).to(tl.int64))
