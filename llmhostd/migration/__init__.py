"""How does a request move unnoticed?"""
