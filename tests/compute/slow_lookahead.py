"""Shadow validation with no shortcut: every request of a copy is stepped, and all is summed up anew for every step."""

from dataclasses import replace

from msgspec import structs

from llmhostd.compute.headroom import Agenda
from llmhostd.compute.iteration_plan import next_plan
from llmhostd.compute.shadow_validation import TOLERANCE_S
from llmhostd.compute.workload import InstanceLoad, NodeLoad

NEVER_S = float("inf")


class Slower:
    def __init__(self, estimator, factor):
        self.estimator, self.factor = estimator, factor

    def iteration_s(self, **asked):
        return self.estimator.iteration_s(**asked) * self.factor


def prefills(one):
    """Say (request, what the rest of its prefill takes)."""
    first_run_s = one.first_run_s
    for each in one.requests.values():
        if each.latency_sensitive and not each.decoding:
            part = ((each.pending_tokens, each.computed_tokens),)
            yield each, one.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0) + first_run_s
            first_run_s = 0.0


def cannot_be_in_time(one, cost_s, now):
    """Whether its first token would be late even if nobody else got anything."""
    return one.deadlines.late_first_token_slo_factor and not one.tokens_out and now > one.deadline_s - cost_s


def too_late(box, now):
    """Whose first tokens would be."""
    return [
        each.shape.id
        for one in box.instances.values()
        for each, cost_s in prefills(one)
        if cannot_be_in_time(each, cost_s, now)
    ]


def due_later(one):
    """What can no longer be in time is due another TTFT SLO, or several, later."""
    more_s = one.deadlines.late_first_token_slo_factor * one.shape.slo.ttft_s
    return replace(one, shape=structs.replace(one.shape, grace_s=one.shape.grace_s + more_s))


def picture(box, joined, newcomer, start_s, factor):
    """Copy the latency-sensitive part; everything loads and runs a little more slowly."""
    copy, hopeless = NodeLoad(box.busy_until_s), too_late(box, start_s)
    for key, one in box.instances.items():
        people = {name: each for name, each in one.requests.items() if each.latency_sensitive}
        requests = {name: due_later(each) if name in hopeless else replace(each) for name, each in people.items()}
        if key == joined:
            requests[newcomer.shape.id] = replace(newcomer)
        if requests or one.ready_at_s > box.busy_until_s:
            slower = Slower(one.estimator, factor)
            copy.instances[key] = InstanceLoad(
                key, slower, one.ready_at_s, one.first_run_s * factor, requests, room=one.room
            )
    return copy


class World:
    def __init__(self, box, now, policy, scheduling):
        self.box, self.now, self.policy, self.scheduling = box, now, policy, scheduling
        self.steps, self.late, self.first_s = 0, [], {}

    def requests(self):
        return {name: each for one in self.box.instances.values() for name, each in one.requests.items()}

    def step(self):
        """Play one iteration; returns the tokens that came late as (request, index, seconds), None at the end."""
        if self.steps == self.policy.max_steps:
            return None
        self.steps += 1
        plan = next_plan(Agenda(self.box, puts_off=False), self.now, self.scheduling)
        loading = [one.ready_at_s for one in self.box.instances.values() if one.ready_at_s > self.now]
        if plan is None:
            if not loading or min(loading) == NEVER_S:
                return None
            self.now = min(loading)
            return []
        self.now += plan.predicted_s * (self.policy.loading_slowdown if loading else 1.0)
        instance, late = self.box.instances[plan.instance_id], []
        instance.first_run_s = 0.0
        if instance.room and plan.filling_s:
            instance.room = instance.room.after(plan.adapters)
        for row in plan.rows:
            one = instance.requests[row.request_id]
            one.computed_tokens += row.tokens
            if row.sample:
                late += [(row.request_id, one.tokens_out, self.now - one.deadline_s)] * (self.now > one.deadline_s)
                self.first_s.setdefault(row.request_id, self.now)
                one.said(1, self.now)
                if one.tokens_out >= one.shape.max_tokens:
                    del instance.requests[row.request_id]
        self.late += late
        return late


def a_token_each_s(one, batch, context):
    """One iteration, or as many as adapters need turns in the slots, each with its share of the requests."""
    adapters = {each.shape.adapter for each in batch} - {""}
    if not one.room or len(adapters) <= one.room.slots:
        seconds = one.estimator.iteration_s(prefill=(), decode_batch=len(batch), decode_context=context)
        return seconds + (seconds * one.room.share * (len(adapters) - 1) if len(adapters) > 1 else 0.0)
    turns = -(-len(adapters) // one.room.slots)
    share = -(-len(batch) // turns)
    seconds = one.estimator.iteration_s(prefill=(), decode_batch=share, decode_context=context)
    seconds += seconds * one.room.share * (one.room.slots - 1)
    return turns * seconds + len(adapters) * one.room.fill_s


def decodes_fill(box, joined, newcomer, policy):
    """Case 3, from its definition."""
    share = 0.0
    for key, one in box.instances.items():
        batch = [each for each in one.requests.values() if each.latency_sensitive]
        batch += [newcomer] if key == joined else []
        if batch:
            grown = [r.context_tokens + min(policy.growth_tokens, r.shape.max_tokens - r.tokens_out) for r in batch]
            seconds = a_token_each_s(one, batch, sum(grown) // len(batch))
            share += seconds * policy.pessimism / min(r.shape.slo.tpot_s for r in batch)
    return share


def device_time_due(box, now, until_s, but=None):
    """The least that must be computed by `until_s`, from its definition: whole prefills, or one token after another."""
    total_s = 0.0
    for one in box.instances.values():
        people = [each for each in one.requests.values() if each.latency_sensitive]
        batch = [replace(each) for each in people if each.decoding]
        prefill_s = 0.0
        for each, cost_s in prefills(one):
            prefill_s += cost_s if each.shape.id != but and now <= each.deadline_s <= until_s else 0.0
        rounds, decode_s = 0, 0.0
        if batch:
            decode_s = a_token_each_s(one, batch, sum(each.context_tokens for each in batch) // len(batch))
        on_time = batch and min(each.deadline_s for each in batch) >= now
        while on_time and all(each.tokens_out < each.shape.max_tokens for each in batch):
            at_s = min(each.deadline_s for each in batch)  # as late as can be
            if at_s > until_s:
                break
            rounds += 1
            on_time = len({each.shape.slo.tpot_s for each in batch}) == 1  # else one is all that is sure
            for each in batch:
                each.said(1, at_s)
        total_s += max(prefill_s, rounds * decode_s)
    return total_s


def overbooked(played, newcomer):
    """Whether more must be computed than there is time, only with the newcomer: by one of its next three deadlines."""
    for later in range(3):
        until_s = newcomer.deadline_s + later * newcomer.shape.slo.tpot_s
        due_s = device_time_due(played.box, played.now, until_s)
        if due_s > until_s - played.now >= device_time_due(played.box, played.now, until_s, but=newcomer.shape.id):
            return True
    return False


def accepts(box, joined, newcomer, now, policy, scheduling):
    """Say (whether it may join, when its next token comes or None)."""
    if not newcomer.latency_sensitive:
        return True, None
    start_s, own = max(now, box.busy_until_s), newcomer.shape.id
    if decodes_fill(box, joined, newcomer, policy) > 1.0:
        return False, None
    played = World(picture(box, joined, newcomer, start_s, policy.pessimism), start_s, policy, scheduling)
    without = World(picture(box, None, None, start_s, policy.pessimism), start_s, policy, scheduling)
    late_now = [key for one in box.instances.values() for key, each in one.requests.items() if each.deadline_s < now]
    late_now += too_late(box, start_s)
    then = None
    while True:
        round_ends = not played.steps % max(len(played.box.instances), 1)
        if round_ends and own not in played.first_s and overbooked(played, newcomer):
            return False, None
        late = played.step()
        if late is None:
            break
        for name, index, seconds in late:
            while without.now < played.now and without.step() is not None:
                pass
            anyway_s = max([s for n, i, s in without.late if (n, i) == (name, index)], default=0.0)
            excused = name in late_now or seconds <= anyway_s + TOLERANCE_S
            if name == own or not policy.only_added_harm or not excused:
                return False, None
        if own not in played.first_s:
            if played.now > newcomer.deadline_s:
                return False, None
            continue
        then = then or {name: each.tokens_out for name, each in played.requests().items()}
        slack_s = Agenda(played.box, puts_off=False).slack_s(played.now, scheduling.headroom, strict=True)
        if slack_s >= 0.0 or all(each.tokens_out > then[name] for name, each in played.requests().items()):
            break
    came_s = played.first_s.get(own)
    if came_s is None:  # the play ended before: it may come next
        one = played.box.instances[joined]
        mine = one.requests[own]
        part = ((mine.pending_tokens, mine.computed_tokens),)
        own_s = one.estimator.iteration_s(prefill=part, decode_batch=0, decode_context=0)
        came_s = max(played.now, one.ready_at_s) + one.first_run_s + own_s
    return came_s <= newcomer.deadline_s, came_s
