"""How long does it take to resume a request elsewhere? (ServerlessLLM §6.2: a * (t_in + t_out) + b.)

Resuming is computing its context again; sending its tokens takes nothing beside that. a and b are the model's on that
node, at the batch that decodes there, and come from the profile that the node schedules by.
"""

from dataclasses import dataclass

from llmhostd.compute.workload import InstanceLoad


@dataclass(frozen=True, slots=True)
class ResumeCost:
    """What resuming so many tokens takes."""

    seconds_per_token: float
    """a."""
    seconds: float
    """b: what an iteration takes before it computes the first of them."""

    def resume_s(self, tokens: int) -> float:
        """Return a * tokens + b."""
        return self.seconds_per_token * tokens + self.seconds


def resume_cost(instance: InstanceLoad, context_tokens: int) -> ResumeCost:
    """Fit a and b on one instance: a token, and as many more as are to be resumed, beside those that decode there."""
    decodes = [one for one in instance.requests.values() if one.decoding and one.latency_sensitive]
    batch = len(decodes)
    mean_context = sum(one.context_tokens for one in decodes) // batch if batch else 0
    many = max(context_tokens, 2)

    def iteration_s(tokens: int) -> float:
        return instance.estimator.iteration_s(prefill=((tokens, 0),), decode_batch=batch, decode_context=mean_context)

    one_s, many_s = iteration_s(1), iteration_s(many)
    per_token_s = max(many_s - one_s, 0.0) / (many - 1)
    return ResumeCost(per_token_s, max(one_s - per_token_s, 0.0))
