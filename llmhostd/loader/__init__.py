"""How do bytes get from a disk or a hub to an engine?"""
