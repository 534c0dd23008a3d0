"""How does text become tokens, and tokens text?"""
