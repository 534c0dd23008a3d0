"""One box's mind: where does a request go, who gives way, what is loaded?"""
