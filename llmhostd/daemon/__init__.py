"""The control process: drives `host`, talks to callers, supervises workers."""
