"""What computes, and what is the same for everything that computes (KV tables, batching, sampling)?"""
