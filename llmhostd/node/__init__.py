"""One device's mind: whose iteration is next, how big is its prefill chunk, which memory operation may run now?"""
