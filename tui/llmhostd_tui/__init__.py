"""What is the box doing this second? The terminal UI, over the same REST as anyone's client.

app        keys, messages, when to redraw
client     all its I/O: snapshots and server-sent events, over TCP or a unix socket
messages   what the client tells the app
picture    what is known: the last snapshot, rates, histories, decisions, troubles
look       colours; `words` spells amounts
screens    overview, details, help
widgets    one table per kind of thing, bars, header, banner
"""
