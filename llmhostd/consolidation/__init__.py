"""How few devices can carry this?"""
