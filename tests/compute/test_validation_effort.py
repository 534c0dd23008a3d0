"""How much is looked at before a verdict? Counted in questions to the estimator: one or two per iteration played."""

from nodes import LinearEstimator, instance, node, request

from llmhostd.compute.shadow_validation import ShadowPolicy, validate

POLICY = ShadowPolicy()


class Counting(LinearEstimator):
    def __init__(self, **speed):
        super().__init__(**speed)
        self.asked = 0

    def iteration_s(self, **asked):
        self.asked += 1
        return super().iteration_s(**asked)


def crowd(estimator, instances, each, fresh_s=0.01):
    """Instances of a few decodes whose next tokens are due one after the other within a TPOT."""
    return [
        instance(
            f"i{k}",
            *(request(f"r{k}.{n}", 300, out=9, max_tokens=400, arrived=-3.8 + k * fresh_s) for n in range(each)),
            estimator=estimator,
        )
        for k in range(instances)
    ]


def questions(box, joins, newcomer):
    estimator = next(iter(box.instances.values())).estimator
    estimator.asked = 0
    verdict = validate(box, joins, newcomer, 0.0, POLICY)
    return verdict, estimator.asked


def test_an_iteration_of_decodes_asks_once_however_many_they_are():
    few, many = (crowd(Counting(step_s=0.008, token_s=0.0), 16, each) for each in (1, 12))
    newcomer = request("new", 400, max_tokens=400, ttft=1.0)
    verdict, asked = questions(node(*few), "i3", newcomer)
    same, asked_of_many = questions(node(*many), "i3", newcomer)
    assert verdict.accepted
    assert same.accepted
    assert asked_of_many <= asked + 16


def test_what_is_overbooked_is_refused_before_it_is_played():
    box = node(*crowd(Counting(step_s=0.010, token_s=0.0002), 16, 2))
    verdict, asked = questions(box, "i3", request("new", 2500, ttft=1.0))
    assert not verdict.accepted
    assert "more work is due" in verdict.because
    assert asked < 3 * 16
