"""How well does any OpenAI-compatible server keep its promises under load?

Open loop: requests are sent when they are due, however late the answers are, as callers who do not know each other
would send them.

    schedule, trace   who asks for how much, when
    prompts           what they say, at the length that was asked for
    http1, client     one exchange over a raw socket, every read stamped
    drive             sends a schedule and collects records
    summary, report   percentiles, SLO attainment, goodput; on a terminal or as JSON
"""
