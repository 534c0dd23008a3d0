"""Whose byte is it, and when may it change hands?"""
